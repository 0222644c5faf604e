"""What goes wrong while the simulator writes."""


class SimulatorError(Exception):
    """Anything that stops a simulation."""


class BadTarget(SimulatorError):
    """The folder, URL or setting that the caller gave cannot be used; nothing was written."""


class DeliveryFailed(SimulatorError):
    """Kafka did not acknowledge a message.

    Args:
        topic: where the message went.
        key: the entity id that it is keyed by.
        reason: what the client said.
        unconfirmed: messages of the same batch without an acknowledgement, this one included.
    """

    def __init__(self, *, topic: str, key: str, reason: str, unconfirmed: int) -> None:
        self.topic, self.key, self.reason, self.unconfirmed = topic, key, reason, unconfirmed
        super().__init__(topic, key, reason, unconfirmed)

    def __str__(self) -> str:
        return (
            f"Kafka topic `{self.topic}`: expected every message of the batch to be acknowledged, "
            f"got {self.reason!r} for key `{self.key}`. {self.unconfirmed} messages are unconfirmed "
            "and not in the truth. Check the broker and the topic, "
            "then start again with a fresh topic or a later `start`."
        )
