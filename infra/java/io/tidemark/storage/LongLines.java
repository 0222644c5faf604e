package io.tidemark.storage;

import java.io.IOException;
import java.io.InputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** Looks for the line that a reader has passed over because of its length. */
public final class LongLines {
  private static final int BUFFER_BYTES = 1 << 20;

  private LongLines() {}

  /**
   * Reads a file that is not compressed, in as little memory as a buffer takes.
   *
   * @return what is wrong with it, in words; empty where no line is longer than {@link BoundedCodec#LONGEST}
   * @throws IOException if it cannot be read
   */
  public static String find(String file, Configuration conf) throws IOException {
    Path path = new Path(file);
    LineLength line = new LineLength(BoundedCodec.longest(conf));
    byte[] buffer = new byte[BUFFER_BYTES];
    try (InputStream in = path.getFileSystem(conf).open(path)) {
      for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
        line.take(buffer, 0, count);
      }
      return "";
    } catch (LineLength.LongLineException e) {
      return e.getMessage();
    }
  }
}
