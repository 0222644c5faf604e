package io.tidemark.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, MinIO or a local disk, safe with any number of writing processes.
 *
 * <p>Delta's own stores for these exclude other writers of the same JVM only. Set it with {@code
 * spark.delta.logStore.s3a.impl} and {@code spark.delta.logStore.file.impl}.
 */
public class ConditionalCreateLogStore extends HadoopFileSystemLogStore {
  /** Called by Delta. */
  public ConditionalCreateLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  /**
   * Writes one file of the log, one action a line.
   *
   * @throws java.nio.file.FileAlreadyExistsException if another writer has it, unless {@code overwrite}
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

  /**
   * Lists the folder of a file by name, from that file on.
   *
   * <p>Delta's way, less its look whether the folder exists: the listing itself tells, and on S3 the look
   * costs up to two more requests each time a table is read.
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration hadoopConf) throws IOException {
    FileStatus[] files = path.getFileSystem(hadoopConf).listStatus(path.getParent());
    return Arrays.stream(files)
        .filter(file -> file.getPath().getName().compareTo(path.getName()) >= 0)
        .sorted(Comparator.comparing(file -> file.getPath().getName()))
        .iterator();
  }

  /** No: a file of either store appears whole. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }
}
