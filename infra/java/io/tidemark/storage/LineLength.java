package io.tidemark.storage;

import java.io.IOException;

/** Counts the bytes of the line that a stream is in, and refuses one that is too long. */
final class LineLength {
  private final long longest;
  private long length;

  LineLength(long longest) {
    this.longest = longest;
  }

  /**
   * Takes the next bytes of the stream.
   *
   * @throws LongLineException if they make a line longer than it may be
   */
  void take(byte[] bytes, int offset, int count) throws LongLineException {
    int begin = offset;
    for (int index = offset; index < offset + count; index++) {
      if (bytes[index] == '\n' || bytes[index] == '\r') {
        check(index - begin);
        length = 0;
        begin = index + 1;
      }
    }
    check(offset + count - begin);
    length += Math.max(0, offset + count - begin);
  }

  private void check(int more) throws LongLineException {
    if (length + more > longest) {
      throw new LongLineException(longest);
    }
  }

  /** A line of a file is longer than it may be. */
  static final class LongLineException extends IOException {
    LongLineException(long longest) {
      super("a line is longer than " + longest + " bytes (TIDEMARK_MAX_LINE_BYTES)");
    }
  }
}
