package io.tidemark.storage;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, MinIO or a local disk, safe with any number of writing processes.
 *
 * <p>Delta's own stores for these exclude other writers of the same JVM only. Set it with {@code
 * spark.delta.logStore.s3a.impl} and {@code spark.delta.logStore.file.impl}. Reading and listing are those of
 * Delta's S3 store, and so is the answer that no partial write is visible: here it is true of local files, too.
 */
public class ConditionalCreateLogStore extends S3SingleDriverLogStore {
  /** Called by Delta. */
  public ConditionalCreateLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  /**
   * Writes one file of the log, one action a line.
   *
   * @throws java.nio.file.FileAlreadyExistsException if another writer has this version, unless {@code overwrite}
   */
  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    AtomicFile file = AtomicFile.open(path, hadoopConf, overwrite);
    try {
      while (actions.hasNext()) {
        file.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
      file.close();
    } catch (FileAlreadyExistsException e) {
      // Delta resolves conflicts on Java's exception and fails on Hadoop's of the same name.
      throw (IOException) new java.nio.file.FileAlreadyExistsException(path.toString()).initCause(e);
    } finally {
      file.cancel();
    }
  }
}
