package io.tidemark.storage;

import java.io.IOException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.Deque;

/**
 * What a local disk must be asked for, so that a commit outlives a loss of power.
 *
 * <p>A file that was written and closed lies in memory for half a minute. Its content and its name reach the
 * disk apart from each other, in any order, unless they are forced to it.
 */
class Disk {
  /** The one in use; tests replace it to see the order of the calls. */
  static Disk local = new Disk();

  /** Waits until the content of a file, or the names in a folder, are on the disk. */
  void force(Path path) throws IOException {
    // Channels close when their thread is interrupted, as that of a stopped query is in the middle of a commit.
    boolean interrupted = Thread.interrupted();
    try {
      while (true) {
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
          channel.force(true);
          return;
        } catch (ClosedByInterruptException e) {
          interrupted = true;
          Thread.interrupted();
        }
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Gives a file another name, unless there is one of that name. */
  void link(Path existing, Path name) throws IOException {
    Files.createLink(name, existing);
  }

  /** Makes a folder and those above it, on the disk too. */
  final void createFolders(Path folder) throws IOException {
    Deque<Path> missing = new ArrayDeque<>();
    for (Path each = folder; each != null && !Files.isDirectory(each); each = each.getParent()) {
      missing.push(each);
    }
    Files.createDirectories(folder);
    for (Path made : missing) {
      force(made.getParent());
    }
  }
}
