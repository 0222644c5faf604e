package io.tidemark.planning;

import static scala.jdk.javaapi.CollectionConverters.asJava;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.delta.sources.CompositeLimit;
import org.apache.spark.sql.delta.sources.DeltaSource;
import org.apache.spark.sql.delta.sources.DeltaSourceOffset;
import org.apache.spark.sql.delta.sources.IndexedFile;
import org.apache.spark.sql.delta.sources.ReadMaxBytes;
import org.apache.spark.sql.delta.storage.ClosableIterator;
import org.apache.spark.sql.execution.streaming.Source;
import scala.Option;

/**
 * A Delta table that is read until its end while queries of the same process still fill it.
 *
 * <p>As long as it grows, a batch waits until it is full: so it reads the same files as if it had waited until the table
 * was complete. From then on it is Delta's own source, of what there is to read at that moment.
 */
public final class GrowingTable extends StreamedTable {
  /** Options of a stream: by which name the table was said to grow, and its newest version before, or -1. */
  private static final String NAME = "tidemark.growing", BEFORE = "tidemark.growing.before";

  /** Option: bytes of a batch, where what the table had before fills none of the usual size; as usual if it is missing. */
  private static final String BYTES = "tidemark.growing.bytes";

  private static final long LOOKS_EVERY_MS = 500;

  private enum State {
    GROWING,
    LEFT
  }

  private static final Map<String, State> STATES = new HashMap<>();

  /**
   * Says that a table grows; before a stream over it starts.
   *
   * @param name of the table's growth, once in this process
   */
  public static void grows(String name) {
    set(name, State.GROWING);
  }

  /**
   * Says that a table has all that its readers wait for.
   *
   * @param name as in `grows`
   */
  public static void complete(String name) {
    set(name, null);
  }

  /**
   * Says that no batch is to be planned any more, full or not.
   *
   * @param name as in `grows`
   */
  public static void leave(String name) {
    set(name, State.LEFT);
  }

  private static void set(String name, State state) {
    synchronized (STATES) {
      if (state == null) STATES.remove(name);
      else STATES.put(name, state);
      STATES.notifyAll();
    }
  }

  private static State of(String name, long waitMs) throws InterruptedException {
    synchronized (STATES) {
      if (waitMs > 0 && STATES.get(name) == State.GROWING) STATES.wait(waitMs);
      return STATES.get(name);
    }
  }

  @Override
  Source of(DeltaSource source, scala.collection.immutable.Map<String, String> options) {
    return new Growing(source, asJava(options));
  }

  private static final class Growing extends Streamed {
    private final String name;
    private final long before;
    private final String bytes;

    /** Of each batch; chosen with the first. */
    private ReadLimit limit;

    private boolean isPrepared;

    /** What is known of the batch that comes next: where it begins, what it has room for, and up to where that was counted. */
    private String begin;

    private Place counted;
    private DeltaSource.AdmissionLimits room;

    Growing(DeltaSource source, Map<String, String> options) {
      super(source);
      name = options.get(NAME);
      before = Long.parseLong(options.get(BEFORE));
      bytes = options.get(BYTES);
    }

    /** What is there now is not yet all. */
    @Override
    public void prepareForTriggerAvailableNow() {}

    @Override
    public Offset latestOffset(Offset start, ReadLimit usual) {
      if (limit == null) limit = chosen(start, usual);
      try {
        for (State state = of(name, 0); state != null; state = of(name, LOOKS_EVERY_MS)) {
          // With an answer, Spark would plan a batch of it: an empty one, by which later events are judged.
          if (state == State.LEFT) throw new InterruptedException();
          if (isFull(start)) return super.latestOffset(start, limit);
        }
      } catch (InterruptedException stopped) {
        // As Spark ends a query that waits elsewhere.
        throw new UncheckedIOException(new InterruptedIOException("the query was stopped while it waited for a full batch"));
      }
      if (!isPrepared) {
        isPrepared = true;
        super.prepareForTriggerAvailableNow();
      }
      return super.latestOffset(start, limit);
    }

    private ReadLimit chosen(Offset start, ReadLimit usual) {
      if (bytes == null || fills(start, usual)) return usual;
      ReadMaxBytes fewer = new ReadMaxBytes(Long.parseLong(bytes));
      return usual instanceof CompositeLimit all ? all.copy(fewer, all.maxFiles(), all.minFiles()) : fewer;
    }

    /** Whether what the table had before it grew fills a batch. */
    private boolean fills(Offset start, ReadLimit limit) {
      DeltaSource.AdmissionLimits room = room(limit);
      Place first = place(start);
      if (first != null) take(first, before, room);
      return !room.hasCapacity();
    }

    /** Whether there is so much that more of it would make no difference to the files of the batch. */
    private boolean isFull(Offset start) {
      String begin = start == null ? null : start.json();
      if (room == null || !Objects.equals(begin, this.begin)) {
        this.begin = begin;
        room = room(limit);
        counted = place(start);
      }
      if (counted != null) counted = take(counted, Long.MAX_VALUE, room);
      return !room.hasCapacity();
    }

    private DeltaSource.AdmissionLimits room(ReadLimit limit) {
      return DeltaSource.AdmissionLimits$.MODULE$.apply(options(), limit).get();
    }

    /** Where a batch begins in the log; null where it begins with what the table holds. */
    private Place place(Offset start) {
      if (start == null) {
        Option<Object> first = getStartingVersion();
        return first.isEmpty() ? null : new Place((Long) first.get(), DeltaSourceOffset.BASE_INDEX());
      }
      DeltaSourceOffset offset = toDeltaSourceOffset(start);
      return offset.isInitialSnapshot() ? null : new Place(offset.reservoirVersion(), offset.index());
    }

    /** Takes the files of the log from a place on, until there is no more room; what comes after them. */
    private Place take(Place from, long newest, DeltaSource.AdmissionLimits room) {
      Place next = from;
      ClosableIterator<IndexedFile> files =
          getFileChangesWithRateLimit(from.version(), from.index(), false, Option.apply(room));
      try {
        while (room.hasCapacity() && files.hasNext()) {
          IndexedFile file = files.next();
          // The first of each version is no file, and takes no room.
          if (file.version() > newest) break;
          next = new Place(file.version() + 1, DeltaSourceOffset.BASE_INDEX());
        }
      } finally {
        close(files);
      }
      return next;
    }

    private static void close(ClosableIterator<IndexedFile> files) {
      try {
        files.close();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  private record Place(long version, long index) {}
}
