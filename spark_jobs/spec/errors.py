"""What goes wrong when a definition is written."""


class DefinitionError(ValueError):
    """A pipeline definition that cannot work; the text names the field, the value and the way out."""
