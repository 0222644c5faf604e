"""All streams of a shop on one line of event time."""

import heapq
from collections.abc import Callable, Iterator, Mapping

from spark_jobs.simulator.card_payments import card_payment_events
from spark_jobs.simulator.catalogue import product_events
from spark_jobs.simulator.clicks import click_events
from spark_jobs.simulator.customers import customer_events
from spark_jobs.simulator.order_payments import order_payment_events
from spark_jobs.simulator.orders import order_events
from spark_jobs.simulator.readings import reading_events
from spark_jobs.simulator.request_logs import request_log_events
from spark_jobs.simulator.rides import position_events, request_events
from spark_jobs.simulator.sales import sale_events
from spark_jobs.simulator.shipments import shipment_events
from spark_jobs.simulator.shop import Shop
from spark_jobs.simulator.statuses import status_events
from spark_jobs.simulator.streams import STREAM_NAMES, Event, StreamName
from spark_jobs.simulator.ticks import tick_events
from spark_jobs.simulator.transfers import transfer_events
from spark_jobs.simulator.visits import payment_events, visit_events

_GENERATORS: Mapping[StreamName, Callable[[Shop, int], Iterator[Event]]] = {
    "sales": sale_events,
    "products": product_events,
    "clicks": click_events,
    "visits": visit_events,
    "payments": payment_events,
    "customers": customer_events,
    "orders": order_events,
    "order_payments": order_payment_events,
    "readings": reading_events,
    "statuses": status_events,
    "ticks": tick_events,
    "shipments": shipment_events,
    "ride_requests": request_events,
    "driver_positions": position_events,
    "transfers": transfer_events,
    "card_payments": card_payment_events,
    "request_logs": request_log_events,
}


def timeline(shop: Shop, start_ms: int) -> Iterator[Event]:
    """What happens in the shop from `start_ms` on, in order of event time, for ever.

    Ties between streams follow `STREAM_NAMES`, whatever the order in `shop.streams`.
    """
    generators = [_GENERATORS[name](shop, start_ms) for name in STREAM_NAMES if name in shop.streams]
    return heapq.merge(*generators, key=lambda event: event.event_time_ms)
