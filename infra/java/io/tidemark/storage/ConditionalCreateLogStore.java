package io.tidemark.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, MinIO or a local disk, safe with any number of writing processes.
 *
 * <p>Delta's own stores for these exclude other writers of the same JVM only. Set it with {@code
 * spark.delta.logStore.s3a.impl} and {@code spark.delta.logStore.file.impl}.
 */
public class ConditionalCreateLogStore extends HadoopFileSystemLogStore {
  private static final Pattern ADDED = Pattern.compile("\"path\":\"([^\"]*)\"");

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
      boolean names = !overwrite && isLocal(path, hadoopConf);
      Set<java.nio.file.Path> folders = new LinkedHashSet<>();
      while (actions.hasNext()) {
        String action = actions.next();
        if (names && action.startsWith("{\"add\":")) {
          java.nio.file.Path added = addedFile(path.getParent().getParent(), action);
          Disk.local.force(added);
          folders.add(added.getParent());
        }
        file.write((action + "\n").getBytes(StandardCharsets.UTF_8));
      }
      // A commit must never name a file of which a loss of power leaves less than all.
      for (java.nio.file.Path folder : folders) {
        Disk.local.force(folder);
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
   * <p>What lies before it is not looked at: a table's log grows with each commit, and its newest part is asked
   * for each time that the table is read.
   *
   * @throws java.io.FileNotFoundException if there is no such folder
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration hadoopConf) throws IOException {
    FileSystem fs = path.getFileSystem(hadoopConf);
    FileStatus[] files = isLocal(path, hadoopConf) ? localFrom(fs, path) : objectsFrom(fs, path);
    return Arrays.stream(files)
        .filter(file -> file.getPath().getName().compareTo(path.getName()) >= 0)
        .sorted(Comparator.comparing(file -> file.getPath().getName()))
        .iterator();
  }

  private static FileStatus[] localFrom(FileSystem fs, Path path) throws IOException {
    Path folder = path.getParent();
    String[] names = AtomicFile.local(fs, folder).list();
    if (names == null) {
      return fs.listStatus(folder); // tells why not
    }
    List<FileStatus> found = new ArrayList<>();
    for (String name : names) {
      if (name.compareTo(path.getName()) >= 0) {
        try {
          found.add(fs.getFileStatus(new Path(folder, name)));
        } catch (FileNotFoundException gone) {
          // An old checkpoint of the log, removed in between.
        }
      }
    }
    return found.toArray(new FileStatus[0]);
  }

  private static FileStatus[] objectsFrom(FileSystem fs, Path path) throws IOException {
    FileStatus[] found = ObjectListing.from(fs, fs.makeQualified(path));
    // Where nothing lies from there on, the folder may be missing.
    return found.length > 0 ? found : fs.listStatus(path.getParent());
  }

  private static boolean isLocal(Path path, Configuration hadoopConf) throws IOException {
    FileSystem fs = path.getFileSystem(hadoopConf);
    return AtomicFile.local(fs, path) != null;
  }

  private static java.nio.file.Path addedFile(Path table, String action) throws IOException {
    Matcher added = ADDED.matcher(action);
    if (!added.find()) {
      throw new IOException("expected the path of a data file, got `" + action + "`. Nothing was committed.");
    }
    // Relative to the table, or absolute for a file of another one.
    String path = URI.create(added.group(1)).getPath();
    return java.nio.file.Path.of(table.toUri().getPath()).resolve(path);
  }

  /** No: a file of either store appears whole. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }
}
