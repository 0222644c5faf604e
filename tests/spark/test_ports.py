"""Where a driver on one machine can be reached: by its own processes only."""

import ipaddress
from collections.abc import Iterator
from contextlib import suppress

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def processes(spark: SparkSession) -> Iterator[psutil.Process]:
    """The driver's: this one, its JVM, and the workers that the JVM has started."""
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    yield from (psutil.Process(), jvm, *jvm.children(recursive=True))


def listening(spark: SparkSession) -> dict[str, str]:
    """The sockets on which a driver listens: address and port -> by which process."""
    found = {}
    for each in processes(spark):
        with suppress(psutil.NoSuchProcess):  # a worker that has just ended
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[f"{connection.laddr.ip} {connection.laddr.port}"] = each.name()
    return found


def command_lines(spark: SparkSession) -> Iterator[str]:
    for each in processes(spark):
        with suppress(psutil.NoSuchProcess):
            yield " ".join(each.cmdline())


def is_loopback(socket: str) -> bool:
    address = ipaddress.ip_address(socket.split()[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def test_a_driver_on_this_machine_listens_to_nobody_else(spark: SparkSession) -> None:
    # Whatever listens only once there is work: a shuffle, and the workers of Python.
    doubled = F.udf(lambda number: number * 2, "bigint")
    assert spark.range(4, numPartitions=2).select(doubled("id").alias("n")).groupBy().sum("n").collect()[0][0] == 12
    sockets = listening(spark)
    assert "java" in sockets.values(), "its JVM is among them"
    assert [socket for socket in sockets if not is_loopback(socket)] == []


def test_who_reaches_it_all_the_same_needs_a_secret_of_this_run(spark: SparkSession) -> None:
    assert spark.conf.get("spark.authenticate") == "true"
    secret = spark._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    assert len(secret) >= 32
    assert [line for line in command_lines(spark) if secret in line] == []
