package io.tidemark.storage;

import java.io.IOException;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Asks a store, at start-up, whether concurrent writers are safe on it. */
public final class StoreProbe {
  private static final String LEGACY_FLAG = "fs.s3a.create.performance";

  private StoreProbe() {}

  /**
   * Creates one fresh file twice, exclusively, and removes it again. (Where nothing else is in the folder, S3A
   * leaves its mark for an empty folder.)
   *
   * @param uri a folder or prefix of the store in which this process may write
   * @return whether exactly the first create won, and the store can tell by whom it was written. False where
   *     {@code If-None-Match} is ignored: the store must not have concurrent writers then.
   * @throws IllegalStateException if S3A is set up to overwrite where it is told not to
   * @throws IOException if the store cannot be written at all, or refuses conditional requests with an error
   */
  public static boolean conditionalCreate(String uri, Configuration conf) throws IOException {
    Path path = new Path(uri, ".tidemark-probe-" + UUID.randomUUID());
    FileSystem fs = path.getFileSystem(conf);
    refuseCarelessCreates(fs, path);
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
      fs.delete(path, false);
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

  /** The flag does not touch the conditional create of this package, but every other writer of the lake. */
  private static void refuseCarelessCreates(FileSystem fs, Path path) throws IOException {
    if (fs.hasPathCapability(path, LEGACY_FLAG + ".enabled")) {
      throw new IllegalStateException(
          path.getParent() + ": expected fs.s3a.performance.flags without `create`, got `"
              + fs.getConf().get("fs.s3a.performance.flags", "") + "` (and " + LEGACY_FLAG + "="
              + fs.getConf().get(LEGACY_FLAG, "false") + "). With it, Hadoop's create without overwrite"
              + " overwrites all the same, and reports success. Nothing was written. Remove `create` (or `*`)"
              + " from the flags, and " + LEGACY_FLAG + ".");
    }
  }
}
