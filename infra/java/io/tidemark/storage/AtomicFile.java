package io.tidemark.storage;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * A file that appears whole, under its final name, when it is closed, or not at all.
 *
 * <p>Without {@code overwrite} it is <em>exclusive</em>: of any number of writers, in any number of
 * processes, exactly one {@link #close} returns normally; for all others it throws {@link
 * org.apache.hadoop.fs.FileAlreadyExistsException}. A writer whose own file is in place is always told so,
 * also where the store's answer got lost on the way.
 *
 * <p>Both {@link #close} and {@link #cancel} may be called again, in any order: the first one decides.
 */
abstract class AtomicFile extends OutputStream {
  private boolean ended;

  /**
   * Opens a file for writing; missing parent folders are made.
   *
   * @param overwrite whether a file of that name is replaced; otherwise the file is exclusive
   * @throws UnsupportedOperationException if the path is neither a local one nor one of S3A
   */
  static AtomicFile open(Path path, Configuration conf, boolean overwrite) throws IOException {
    FileSystem fs = path.getFileSystem(conf);
    File file = local(fs, path);
    if (file != null) {
      return new AtomicLocalFile(file.toPath(), overwrite);
    }
    if ("s3a".equals(fs.getUri().getScheme())) {
      return new AtomicObject(fs, path, overwrite);
    }
    throw new UnsupportedOperationException(
        path + ": expected a path of file: or s3a:, the two stores on which an exclusive create is known to"
            + " exclude other processes. Nothing was written.");
  }

  /** The file of a path of the local disk; null for a path of another store. */
  static File local(FileSystem fs, Path path) {
    if (fs instanceof LocalFileSystem local) {
      return local.pathToFile(path);
    }
    return fs instanceof RawLocalFileSystem local ? local.pathToFile(path) : null;
  }

  /** The stream that takes the bytes until the file is published. */
  abstract OutputStream bytes();

  /** Makes the written bytes the file; leaves nothing of its own behind when it throws. */
  abstract void publish() throws IOException;

  /** Drops the written bytes. */
  abstract void discard() throws IOException;

  /** Whether what stands under the final name of an exclusive file was written by this object. */
  abstract boolean isMine() throws IOException;

  @Override
  public void write(int value) throws IOException {
    bytes().write(value);
  }

  @Override
  public void write(byte[] data, int offset, int length) throws IOException {
    bytes().write(data, offset, length);
  }

  @Override
  public void flush() throws IOException {
    bytes().flush();
  }

  @Override
  public synchronized void close() throws IOException {
    if (!ended) {
      ended = true;
      publish();
    }
  }

  /** Gives the file up: nothing appears, and what another writer published stays. */
  synchronized void cancel() throws IOException {
    if (!ended) {
      ended = true;
      discard();
    }
  }
}
