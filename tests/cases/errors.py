"""What fails a case."""


class CaseError(AssertionError):
    """What Tidemark does is not what the case, or Tidemark's own rules, say; or the case cannot be read."""
