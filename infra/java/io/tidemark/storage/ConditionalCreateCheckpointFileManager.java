package io.tidemark.storage;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Spark's streaming checkpoints on S3, MinIO or a local disk, with one winner for each log entry.
 *
 * <p>Spark writes a temporary file, looks whether the final name is free, and renames: two drivers can both
 * pass the look, and on S3 the rename is a copy. Here offsets and commits are exclusive, so the second driver
 * of a checkpoint stops, with {@code CONCURRENT_STREAM_LOG_UPDATE} where it comes later and a {@code
 * SparkConcurrentModificationException} where both write at once. State files, which a retried task may write
 * again, are put in place at once. Set it with {@code spark.sql.streaming.checkpointFileManagerClass}.
 */
public class ConditionalCreateCheckpointFileManager extends FileSystemBasedCheckpointFileManager {
  private static final Logger LOG = LoggerFactory.getLogger(ConditionalCreateCheckpointFileManager.class);

  private final Configuration hadoopConf;

  /** Called by Spark. */
  public ConditionalCreateCheckpointFileManager(Path path, Configuration hadoopConf) {
    super(path, hadoopConf);
    this.hadoopConf = hadoopConf;
  }

  /**
   * Opens a file that appears when it is closed.
   *
   * <p>Whether an exclusive file exists is asked in {@code close} only: Spark turns a
   * {@code FileAlreadyExistsException} of {@code close} into its own error, and does not expect one here.
   */
  @Override
  public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(
      Path path, boolean overwriteIfPossible) {
    try {
      return new Output(AtomicFile.open(path, hadoopConf, overwriteIfPossible));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /**
   * Lists what has been published.
   *
   * <p>Spark refuses to begin on a folder of a new checkpoint that is not empty. What a driver leaves behind
   * that was killed while it wrote its first entry must not make it refuse for ever.
   */
  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return super.list(path, found -> !AtomicLocalFile.isTemporary(found.getName()) && filter.accept(found));
  }

  private static final class Output extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final AtomicFile file;

    Output(AtomicFile file) {
      super(file);
      this.file = file;
    }

    @Override
    public void close() throws IOException {
      file.close();
    }

    @Override
    public void cancel() {
      try {
        file.cancel();
      } catch (IOException e) {
        // Spark cancels while it handles another error, which must not be hidden by this one.
        LOG.warn("Cancelled, with an error", e);
      }
    }
  }
}
