package io.tidemark.storage;

import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.UUID;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A file on a local disk: written beside its place, then given its name in one system call.
 *
 * <p>The call is {@code link} for an exclusive file, because {@code rename} replaces silently: a writer that
 * looks first and renames then (as Hadoop's local file system does) can undo what another process wrote in
 * between. Content and name are forced to the disk before the writer goes on: what it writes next relies on them.
 */
final class AtomicLocalFile extends AtomicFile {
  private static final Logger LOG = LoggerFactory.getLogger(AtomicLocalFile.class);
  private static final int BUFFER_BYTES = 1 << 16;

  private final Path path;
  private final boolean overwrite;
  private final Path temporary;
  private final OutputStream bytes;
  private boolean linked;

  AtomicLocalFile(Path path, boolean overwrite) throws IOException {
    this.path = path;
    this.overwrite = overwrite;
    // Like the temporary files of Delta and Spark: the dot sorts it before every version and hides it.
    this.temporary = path.resolveSibling("." + path.getFileName() + "." + UUID.randomUUID() + ".tmp");
    Disk.local.createFolders(path.getParent());
    // Not a channel: those fail when the thread of a stopped query is interrupted in the middle of a commit.
    this.bytes = new BufferedOutputStream(new FileOutputStream(temporary.toFile()), BUFFER_BYTES);
  }

  /** Whether a file of this name is being written, or was when its writer died. */
  static boolean isTemporary(String name) {
    return name.startsWith(".") && name.endsWith(".tmp");
  }

  @Override
  OutputStream bytes() {
    return bytes;
  }

  @Override
  void publish() throws IOException {
    try {
      bytes.close();
      // Its name must never lead to less than its content, not even after a loss of power.
      Disk.local.force(temporary);
      // Hadoop keeps a checksum beside each file that it wrote; a stale one would condemn the new content.
      Files.deleteIfExists(path.resolveSibling("." + path.getFileName() + ".crc"));
      if (overwrite) {
        Files.move(temporary, path, StandardCopyOption.ATOMIC_MOVE);
      } else {
        link();
      }
      Disk.local.force(path.getParent());
    } finally {
      dropTemporary();
    }
  }

  @Override
  void discard() throws IOException {
    try {
      bytes.close();
    } finally {
      dropTemporary();
    }
  }

  @Override
  boolean isMine() {
    return linked;
  }

  /** Never fails: a left-over is hidden, and who won must not depend on it. */
  private void dropTemporary() {
    try {
      Files.deleteIfExists(temporary);
    } catch (IOException e) {
      LOG.warn("Left behind: {}", temporary, e);
    }
  }

  private void link() throws IOException {
    try {
      Disk.local.link(temporary, path);
      linked = true;
    } catch (java.nio.file.FileAlreadyExistsException e) {
      // On a network disk the answer to a first link can be lost and the call repeated.
      linked = Files.isSameFile(path, temporary);
      if (!linked) {
        throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(e);
      }
    } catch (FileSystemException | UnsupportedOperationException e) {
      throw new IOException(
          path + ": expected to give a finished file its name by a hard link, which excludes other writers,"
              + " got `" + e + "`. Nothing was written. On a disk without hard links no lake is safe: put it"
              + " on another disk or on an object store.",
          e);
    }
  }
}
