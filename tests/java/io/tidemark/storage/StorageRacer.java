package io.tidemark.storage;

import io.delta.storage.LogStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * One process of the storage tests. It reads commands from its standard input, one a line, and answers each with
 * lines of its own and a last line {@code done}; settings are given as {@code key=value} arguments.
 *
 * <p>The test, not this program, decides who should have won.
 */
public final class StorageRacer {
  private final Configuration conf;

  private StorageRacer(Configuration conf) {
    this.conf = conf;
  }

  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    for (String setting : arguments) {
      String[] parts = setting.split("=", 2);
      conf.set(parts[0], parts[1]);
    }
    StorageRacer racer = new StorageRacer(conf);
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      try {
        racer.obey(line.split(" "));
      } catch (Exception e) {
        System.out.println("failed " + e);
      }
      System.out.println("done");
      System.out.flush();
    }
  }

  private void obey(String[] words) throws Exception {
    switch (words[0]) {
      case "commits" ->
          commits(words[1], words[2], words[3], Integer.parseInt(words[4]), Integer.parseInt(words[5]),
              Long.parseLong(words[6]));
      case "rounds" ->
          rounds(words[1], words[2], words[3], Integer.parseInt(words[4]), Long.parseLong(words[5]),
              Long.parseLong(words[6]));
      case "commit" -> System.out.println(commit(words[1], words[2], words[3], false));
      case "replace" -> System.out.println(commit(words[1], words[2], words[3], true));
      case "checkpoint" ->
          System.out.println(checkpoint(words[1], words[2], words[3], Boolean.parseBoolean(words[4])));
      case "cancel" -> cancel(words[1], words[2]);
      case "list" -> list(words[1], words[2]);
      case "forced" -> forced(words[1], words[2]);
      case "probe" -> System.out.println(StoreProbe.conditionalCreate(words[1], conf));
      default -> throw new IllegalArgumentException(words[0]);
    }
  }

  /** Several writers append commits to one log, each of them as Delta does: next version, on conflict the next. */
  private void commits(String store, String log, String writer, int threads, int commits, long startMs)
      throws Exception {
    logStore(store).listFrom(file(log, 0), conf); // Opens the connections before the start.
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    List<Future<List<String>>> answers = new ArrayList<>();
    for (int thread = 0; thread < threads; thread++) {
      String name = writer + thread;
      answers.add(pool.submit(() -> write(store, log, name, commits, startMs)));
    }
    for (Future<List<String>> answer : answers) {
      answer.get().forEach(System.out::println);
    }
    pool.shutdown();
  }

  private List<String> write(String store, String log, String writer, int commits, long startMs)
      throws Exception {
    LogStore logStore = logStore(store);
    List<String> acknowledged = new ArrayList<>();
    waitUntil(startMs);
    for (int commit = 0; commit < commits; commit++) {
      long version = nextVersion(logStore, log);
      String content = writer + "-" + commit;
      while (true) {
        try {
          logStore.write(file(log, version), List.of(content).iterator(), false, conf);
          acknowledged.add("won " + version + " " + content);
          break;
        } catch (java.nio.file.FileAlreadyExistsException e) {
          version++;
        }
      }
    }
    return acknowledged;
  }

  private long nextVersion(LogStore logStore, String log) throws Exception {
    long last = -1;
    for (Iterator<FileStatus> files = logStore.listFrom(file(log, 0), conf); files.hasNext(); ) {
      last = Math.max(last, Long.parseLong(files.next().getPath().getName().replace(".json", "")));
    }
    return last + 1;
  }

  /** Writes one log entry a round, all racers at the same instant. */
  private void rounds(String manager, String folder, String writer, int rounds, long startMs, long everyMs)
      throws Exception {
    CheckpointFileManager files = manager(manager, folder);
    files.exists(new Path(folder, "0")); // Opens the connections before the start.
    for (int round = 0; round < rounds; round++) {
      waitUntil(startMs + round * everyMs);
      System.out.println(round + " " + checkpoint(files, new Path(folder, "" + round), writer, false));
    }
  }

  private String commit(String store, String file, String content, boolean overwrite) throws Exception {
    try {
      logStore(store).write(new Path(file), List.of(content).iterator(), overwrite, conf);
      return "won";
    } catch (java.nio.file.FileAlreadyExistsException e) {
      return "lost";
    }
  }

  private String checkpoint(String manager, String file, String content, boolean overwrite) throws Exception {
    Path path = new Path(file);
    return checkpoint(manager(manager, path.getParent().toString()), path, content, overwrite);
  }

  /** Writes as Spark's metadata log does, which cancels after any error. */
  private String checkpoint(CheckpointFileManager files, Path path, String content, boolean overwrite)
      throws Exception {
    CancellableFSDataOutputStream output = files.createAtomic(path, overwrite);
    try {
      output.write(content.getBytes());
      output.close();
      output.close();
      return "won";
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException e) {
      output.cancel();
      return "lost";
    } catch (Exception e) {
      output.cancel();
      throw e;
    }
  }

  private void cancel(String manager, String file) throws Exception {
    Path path = new Path(file);
    CancellableFSDataOutputStream output =
        manager(manager, path.getParent().toString()).createAtomic(path, false);
    output.write(1);
    output.cancel();
    output.close();
  }

  private void list(String store, String file) throws Exception {
    for (Iterator<FileStatus> files = logStore(store).listFrom(new Path(file), conf); files.hasNext(); ) {
      System.out.println("file " + files.next().getPath().getName());
    }
  }

  /** Commits one data file and writes one entry of a checkpoint, and tells what the disk was asked for meanwhile. */
  private void forced(String table, String checkpoint) throws Exception {
    java.nio.file.Path folder = java.nio.file.Path.of(table);
    Disk before = Disk.local;
    Disk.local =
        new Disk() {
          @Override
          void force(java.nio.file.Path path) throws java.io.IOException {
            System.out.println("force " + path);
            super.force(path);
          }

          @Override
          void link(java.nio.file.Path existing, java.nio.file.Path name) throws java.io.IOException {
            System.out.println("link " + existing + " " + name);
            super.link(existing, name);
          }
        };
    try {
      java.nio.file.Files.createDirectories(folder.resolve("_delta_log"));
      java.nio.file.Files.writeString(folder.resolve("a file.parquet"), "rows");
      String add = "{\"add\":{\"path\":\"a%20file.parquet\",\"size\":4}}";
      Path version = file("file:" + table + "/_delta_log", 0);
      logStore("ours").write(version, List.of("{\"commitInfo\":{}}", add).iterator(), false, conf);
      checkpoint("ours", "file:" + checkpoint + "/0", "entry", false);
    } finally {
      Disk.local = before;
    }
  }

  private static final Map<String, String> LOG_STORES =
      Map.of(
          "ours", "io.tidemark.storage.ConditionalCreateLogStore",
          "delta-file", "io.delta.storage.LocalLogStore",
          "delta-s3a", "io.delta.storage.S3SingleDriverLogStore");

  private LogStore logStore(String name) throws Exception {
    return (LogStore)
        Class.forName(LOG_STORES.get(name)).getConstructor(Configuration.class).newInstance(conf);
  }

  private static final String SPARK = "org.apache.spark.sql.execution.streaming.checkpointing.";
  private static final Map<String, String> MANAGERS =
      Map.of(
          "ours", "io.tidemark.storage.ConditionalCreateCheckpointFileManager",
          "spark-file", SPARK + "FileContextBasedCheckpointFileManager",
          "spark-s3a", SPARK + "FileSystemBasedCheckpointFileManager");

  private CheckpointFileManager manager(String name, String folder) throws Exception {
    return (CheckpointFileManager)
        Class.forName(MANAGERS.get(name))
            .getConstructor(Path.class, Configuration.class)
            .newInstance(new Path(folder), conf);
  }

  private static Path file(String log, long version) {
    return new Path(log, String.format("%020d.json", version));
  }

  private static void waitUntil(long instantMs) {
    while (System.currentTimeMillis() < instantMs) {
      Thread.onSpinWait();
    }
  }
}
