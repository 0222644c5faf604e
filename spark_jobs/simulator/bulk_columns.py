"""Columns of many sales at once, from numpy; what a row holds depends on the seed and the row's number."""

from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.simulator.arrivals import ArrivalClass
from spark_jobs.simulator.catalogue import product_id
from spark_jobs.simulator.shop import Shop, id_tag, popularity

ARRIVAL_CLASSES: tuple[ArrivalClass, ...] = get_args(ArrivalClass)
_WORDS = tuple(f"{colour}-{n}" for n in range(16) for colour in ("red", "green", "blue", "grey"))
_TIME = pa.timestamp("us", tz="UTC")
_Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
_Bits = np.ndarray[tuple[int], np.dtype[np.uint64]]


class SalesColumns:
    """Makes tables of sales.

    Args:
        seed: decides the values.
        start_ms: first instant of event time; part of the ids.
        products: size of the catalogue.
        extra_columns: columns to add to those of the stream.
    """

    def __init__(self, *, seed: int, start_ms: int, products: int, extra_columns: int) -> None:
        shop = Shop(seed=seed, products=products)
        draw = np.random.default_rng([seed, 2])
        self._seed = seed
        self._id_prefix = f"s-{id_tag(seed, start_ms)}-"
        self._shares = np.array(popularity(products, shop.dice("popularity")))
        self._names = pa.array([product_id(number) for number in range(products)])
        self._cents = 150 + (draw.random(products) ** 2 * 6_000).astype(np.int64)
        self._extra_columns = extra_columns

    def table(self, number: _Ints, event_ms: _Ints) -> pa.Table:
        """The rows with these numbers and event times, in this order."""
        product = np.minimum(
            np.searchsorted(self._shares, _fractions(self._bits(number, 0)), side="right"),
            len(self._names) - 1,
        )
        discounted = _fractions(self._bits(number, 1)) < 0.1
        price_cents = np.where(discounted, self._cents[product] * 9 // 10, self._cents[product])
        columns = {
            "sale_id": self._ids(number),
            "product_id": pa.DictionaryArray.from_arrays(pa.array(product.astype(np.int32)), self._names),
            "quantity": pa.array((1 + _fractions(self._bits(number, 2)) ** 3 * 6).astype(np.int32)),
            "unit_price": _decimals(price_cents),
            "sold_at": _times(event_ms),
        }
        width = len(str(self._extra_columns))
        for place in range(self._extra_columns):
            columns[f"extra_{place + 1:0{max(2, width)}d}"] = self._extra(number, place)
        return pa.table(columns)

    def _extra(self, number: _Ints, place: int) -> pa.Array:
        bits = self._bits(number, 10 + place)
        match place % 3:
            case 0:
                return pa.array((bits >> np.uint64(44)).astype(np.int64))
            case 1:
                return pa.array(np.round(_fractions(bits) * 1_000, 3))
            case _:
                return pa.DictionaryArray.from_arrays(
                    pa.array((bits >> np.uint64(58)).astype(np.int32)), pa.array(_WORDS)
                )

    def _ids(self, number: _Ints) -> pa.Array:
        digits = pc.utf8_lpad(pa.array(number + 1).cast(pa.string()), width=8, padding="0")
        return pc.binary_join_element_wise(pa.scalar(self._id_prefix), digits, "")

    def _bits(self, number: _Ints, column: int) -> _Bits:
        """64 random bits for each row (splitmix64): independent of how the rows are cut into files."""
        with np.errstate(over="ignore"):
            mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            mixed += np.random.default_rng([self._seed, 3, column]).integers(0, 2**64, dtype=np.uint64)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return mixed ^ (mixed >> np.uint64(31))


def truth_table(
    *,
    first_index: int,
    sale_id: pa.ChunkedArray,
    event_ms: _Ints,
    arrival_ms: _Ints,
    arrival: _Ints,
    newest_before_ms: int | None,
) -> pa.Table:
    """What is true of the rows of one file; see `TruthRow` for the columns."""
    count = len(event_ms)
    newest_ms = np.maximum.accumulate(event_ms)
    if newest_before_ms is not None:
        newest_ms = np.maximum(newest_ms, newest_before_ms)
    places = np.arange(count, dtype=np.int64)
    classes = pa.DictionaryArray.from_arrays(pa.array(arrival.astype(np.int32)), pa.array(ARRIVAL_CLASSES))
    return pa.table(
        {
            "index": pa.array(first_index + places),
            "row": pa.array(places),
            "sale_id": sale_id,
            "event_time": _times(event_ms),
            "arrival_time": _times(arrival_ms),
            "arrival": classes,
            "behind_ms": pa.array(newest_ms - event_ms),
        }
    )


def _fractions(bits: _Bits) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Random bits as numbers in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _times(time_ms: _Ints) -> pa.Array:
    return pa.array(time_ms * 1000).cast(_TIME)


def _decimals(amount_cents: _Ints) -> pa.Array:
    """Cents as DECIMAL(10, 2): Arrow's are 128-bit little-endian integers. Not for negative amounts."""
    words = np.zeros((len(amount_cents), 2), dtype=np.int64)
    words[:, 0] = amount_cents
    return pa.Array.from_buffers(pa.decimal128(10, 2), len(amount_cents), [None, pa.py_buffer(words)])
