"""A console that shows what stands in data, and never obeys it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from spark_jobs.spec.names import visible


class PlainConsole(Console):
    """A console in whose texts control characters are visible: whoever wrote an event must not speak to the terminal.

    What rich itself tells the terminal (colours, the cursor of a live display) is no text, and stays.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
