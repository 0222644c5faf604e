package io.tidemark.reading;

import static scala.jdk.javaapi.CollectionConverters.asJava;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.io.HadoopCodecStreams;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.FileScanRDD;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.util.SerializableConfiguration;

/**
 * Counts the lines of text that a scan of Spark's will read, without reading them: only their ends are looked for.
 *
 * <p>Lines are Hadoop's, as Spark's text source gives them: `\n`, `\r` and `\r\n` end one, the first of a piece belongs
 * to the piece before, and one that is too long is none. A line of nothing but blanks does not count.
 */
public final class LineCount implements Function<FilePartition, String> {
  private static final int BUFFER_BYTES = 256 << 10, BEYOND_BYTES = 8 << 10;

  private final Broadcast<SerializableConfiguration> conf;

  private LineCount(Broadcast<SerializableConfiguration> conf) {
    this.conf = conf;
  }

  /**
   * Counts the lines of each piece of a file, in a job of its own.
   *
   * @param rows that come from one scan of text, by any steps that leave its partitions alone
   * @param conf with which the files are read
   * @return null where a file is compressed: what is in it only its reader knows; else JSON: of each piece with lines the partition, the file's name, where the piece begins, how many lines there
   *     are, how many come before them in the partition, the bytes of the lines and one more for each, and the bytes of
   *     the file
   */
  public static String of(RDD<InternalRow> rows, Configuration conf) {
    RDD<?> scan = rows;
    while (!(scan instanceof FileScanRDD)) scan = asJava(scan.dependencies()).get(0).rdd();
    List<FilePartition> partitions = asJava(((FileScanRDD) scan).filePartitions());
    for (FilePartition partition : partitions) {
      for (PartitionedFile file : partition.files()) {
        if (HadoopCodecStreams.getDecompressionCodec(conf, file.toPath()).isDefined()) return null;
      }
    }
    if (partitions.isEmpty()) return "[]";
    JavaSparkContext context = JavaSparkContext.fromSparkContext(rows.sparkContext());
    // A thousand settings, each of which Hadoop compresses: not with every task.
    Broadcast<SerializableConfiguration> settings = context.broadcast(new SerializableConfiguration(conf));
    List<String> found;
    try {
      found = context.parallelize(partitions, partitions.size()).map(new LineCount(settings)).collect();
    } finally {
      settings.unpersist();
    }
    return "[" + String.join(",", found.stream().filter(each -> !each.isEmpty()).toList()) + "]";
  }

  @Override
  public String call(FilePartition partition) throws IOException {
    List<String> pieces = new ArrayList<>();
    ObjectMapper json = new ObjectMapper();
    long before = 0;
    for (PartitionedFile file : partition.files()) {
      Piece piece = new Piece(file, conf.value().value());
      try {
        piece.read();
      } catch (TaskKilledException killed) {
        throw killed;
      } catch (IOException | RuntimeException error) {
        // As Spark's own reader tells it.
        throw new IOException("FAILED_READ_FILE: " + file.urlEncodedPath(), error);
      }
      if (piece.lines == 0) continue;
      Map<String, Object> found =
          Map.of(
              "partition", partition.index(),
              "file", file.urlEncodedPath(),
              "begins", file.start(),
              "lines", piece.lines,
              "before", before,
              "bytes", piece.bytes,
              "size", file.fileSize());
      pieces.add(json.writeValueAsString(found));
      before += piece.lines;
    }
    return String.join(",", pieces);
  }

  /** A piece of a file, from its beginning to the end of the last line that begins in it. */
  private static final class Piece {
    private final Path path;
    private final Configuration conf;
    private final long longest, begins, ends;

    long lines, bytes;

    /** Where the next byte is. */
    private long at;

    /** The line that it is in: where it begins, whether it is one of the piece's, its bytes, whether all are blanks. */
    private long lineBegins;

    private boolean isOwn;
    private long length;
    private boolean isBlank = true;

    /** Whether the byte before was a `\r`: the line has ended, unless a `\n` follows that is part of its end. */
    private boolean isEnding;

    Piece(PartitionedFile file, Configuration conf) {
      this.path = file.toPath();
      this.conf = conf;
      longest = conf.getInt("mapreduce.input.linerecordreader.line.maxlength", Integer.MAX_VALUE);
      begins = file.start();
      ends = begins + file.length();
      isOwn = begins == 0;
      at = lineBegins = begins;
    }

    void read() throws IOException {
      try (FSDataInputStream text = path.getFileSystem(conf).open(path)) {
        text.seek(begins);
        read(text);
      }
    }

    private void read(InputStream text) throws IOException {
      byte[] buffer = new byte[BUFFER_BYTES];
      if (begins == 0) {
        // A mark of the byte order is no part of the first line.
        int count = text.readNBytes(buffer, 0, 3);
        boolean isMark = count == 3 && buffer[0] == (byte) 0xEF && buffer[1] == (byte) 0xBB && buffer[2] == (byte) 0xBF;
        if (isMark) at += 3;
        else take(buffer, count);
      }
      TaskContext task = TaskContext.get();
      // Of what comes after the piece mostly one line is asked for.
      while (hasMore()) {
        int most = at < ends ? (int) Math.min(BUFFER_BYTES, ends - at) : BEYOND_BYTES;
        int count = text.read(buffer, 0, most);
        if (count < 0) break;
        take(buffer, count);
        task.killTaskIfInterrupted();
      }
      if (isEnding) endLine(1);
      else if (length > 0 && hasMore()) endLine(0);
    }

    /** Whether the line that the next byte is in begins in the piece. */
    private boolean hasMore() {
      return lineBegins <= ends;
    }

    private void take(byte[] buffer, int count) {
      int next = 0;
      while (next < count && hasMore()) {
        if (isEnding) {
          boolean isPart = buffer[next] == '\n';
          if (isPart) {
            next++;
            at++;
          }
          endLine(isPart ? 2 : 1);
          continue;
        }
        int end = endOfLine(buffer, next, count);
        isBlank = isBlank && isBlank(buffer, next, end);
        length += end - next;
        at += end - next;
        next = end;
        if (end == count) return;
        at++;
        next++;
        if (buffer[end] == '\n') endLine(1);
        else isEnding = true;
      }
    }

    private static int endOfLine(byte[] buffer, int from, int count) {
      int next = from;
      while (next < count && buffer[next] != '\n' && buffer[next] != '\r') next++;
      return next;
    }

    private static boolean isBlank(byte[] buffer, int from, int end) {
      for (int next = from; next < end; next++) if (buffer[next] != ' ') return false;
      return true;
    }

    private void endLine(int marks) {
      if (isOwn && !isBlank && length + marks < longest) {
        lines++;
        bytes += length + 1;
      }
      lineBegins = at;
      isOwn = true;
      isBlank = true;
      isEnding = false;
      length = 0;
    }
  }
}
