package io.tidemark.storage;

import java.io.IOException;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;

/** Asks a store, at start-up, whether concurrent writers are safe on it. */
public final class StoreProbe {
  private StoreProbe() {}

  /**
   * Creates one fresh file twice, exclusively, and removes it again.
   *
   * @param uri a folder or prefix of the store in which this process may write
   * @return whether exactly the first create won, and the store can tell by whom it was written. False where
   *     {@code If-None-Match} is ignored: the store must not have concurrent writers then.
   * @throws IllegalStateException if the settings make an exclusive create overwrite
   * @throws IOException if the store cannot be written at all, or refuses conditional requests with an error
   */
  public static boolean conditionalCreate(String uri, Configuration conf) throws IOException {
    Path path = new Path(uri, ".tidemark-probe-" + UUID.randomUUID());
    AtomicFile first = AtomicFile.open(path, conf, false);
    AtomicFile second = AtomicFile.open(path, conf, false);
    try {
      first.write(1);
      second.write(2);
      first.close();
      return refused(second) && first.isMine();
    } finally {
      first.cancel();
      second.cancel();
      path.getFileSystem(conf).delete(path, false);
    }
  }

  private static boolean refused(AtomicFile file) throws IOException {
    try {
      file.close();
      return false;
    } catch (FileAlreadyExistsException e) {
      return true;
    }
  }
}
