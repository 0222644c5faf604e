package io.tidemark.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Optional;
import java.util.UUID;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * An object of an S3 store: one PUT, which for an exclusive object carries {@code If-None-Match: *}.
 *
 * <p>Each exclusive object holds the id of its writer in its metadata. The AWS SDK repeats a PUT whose answer
 * it did not get, and the repetition is refused where the first one had landed; only the id tells this from
 * another writer's victory.
 */
final class AtomicObject extends AtomicFile {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final String PERFORMANCE = "fs.s3a.create.performance";
  private static final String WRITER = "tidemark-writer";
  private static final int LOOKS = 4;
  private static final long FIRST_PAUSE_MS = 100;

  private final FileSystem fs;
  private final Path path;
  private final boolean overwrite;
  private final byte[] writer = UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8);
  private final FSDataOutputStream bytes;

  AtomicObject(FileSystem fs, Path path, boolean overwrite) throws IOException {
    this.fs = fs;
    this.path = path;
    this.overwrite = overwrite;
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(path).recursive();
    if (overwrite) {
      // Saves a LIST for each file: no folder ever has the name of a log or state file.
      builder.overwrite(true).opt(PERFORMANCE, true);
    } else {
      builder
          .overwrite(false)
          .must(CONDITIONAL, true)
          .must("fs.s3a.create.header." + WRITER, new String(writer, StandardCharsets.UTF_8));
    }
    this.bytes = builder.build();
  }

  @Override
  OutputStream bytes() {
    return bytes;
  }

  @Override
  void publish() throws IOException {
    try {
      bytes.close();
    } catch (IOException failure) {
      if (overwrite) {
        throw failure;
      }
      settle(failure);
    }
  }

  @Override
  void discard() {
    bytes.abort();
  }

  @Override
  boolean isMine() throws IOException {
    return Arrays.equals(writer, fs.getXAttr(path, "header." + WRITER));
  }

  /** Finds out who won after a PUT that failed, for whatever reason; returns if this writer did. */
  private void settle(IOException failure) throws IOException {
    // A stopped query interrupts its thread; whether its commit landed must be known all the same.
    boolean interrupted =
        Thread.interrupted()
            || (failure instanceof InterruptedIOException && !(failure instanceof SocketTimeoutException));
    Optional<Boolean> won = verdict(failure);
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
    if (won.isEmpty()) {
      throw failure;
    }
    if (!won.get()) {
      throw (IOException) new FileAlreadyExistsException(path.toString()).initCause(failure);
    }
  }

  /**
   * Reads back whose the object is; empty if there is none, or the store does not answer.
   *
   * <p>An absent object is looked for again: a request that was given up may still be under way in the store,
   * and S3 may refuse a PUT that meets another (409) before that one is through.
   */
  private Optional<Boolean> verdict(IOException failure) {
    for (int look = 0; look < LOOKS; look++) {
      try {
        return Optional.of(isMine());
      } catch (FileNotFoundException absent) {
        try {
          Thread.sleep(FIRST_PAUSE_MS << look);
        } catch (InterruptedException e) {
          Thread.currentThread().interrupt();
          break;
        }
      } catch (IOException unreachable) {
        failure.addSuppressed(unreachable);
        break;
      }
    }
    return Optional.empty();
  }
}
