package io.tidemark.planning;

import static scala.jdk.javaapi.CollectionConverters.asJava;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.delta.sources.DeltaDataSource;
import org.apache.spark.sql.delta.sources.DeltaSource;
import org.apache.spark.sql.delta.sources.DeltaSourceOffset;
import org.apache.spark.sql.delta.sources.IndexedFile;
import org.apache.spark.sql.delta.storage.ClosableIterator;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.sources.StreamSourceProvider;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;

/**
 * A Delta table that is read until its end while queries of the same process still fill it.
 *
 * <p>As long as it grows, a batch waits until it is full: so it reads the same files as if it had waited until the table
 * was complete. From then on it is Delta's own source, of what there is to read at that moment.
 */
public final class GrowingTable implements StreamSourceProvider {
  /** Option of a stream: by which name the table was said to grow. */
  private static final String NAME = "tidemark.growing";

  private static final long LOOKS_EVERY_MS = 500;

  private enum State {
    GROWING,
    LEFT
  }

  private static final Map<String, State> STATES = new HashMap<>();

  private final DeltaDataSource delta = new DeltaDataSource();

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
  public Tuple2<String, StructType> sourceSchema(
      SQLContext context,
      Option<StructType> schema,
      String provider,
      scala.collection.immutable.Map<String, String> options) {
    return delta.sourceSchema(context, schema, provider, options);
  }

  @Override
  public Source createSource(
      SQLContext context,
      String metadataPath,
      Option<StructType> schema,
      String provider,
      scala.collection.immutable.Map<String, String> options) {
    DeltaSource source = (DeltaSource) delta.createSource(context, metadataPath, schema, provider, options);
    return new Growing(source, asJava(options).get(NAME));
  }

  private static final class Growing extends DeltaSource {
    private final String name;
    private boolean isPrepared;

    Growing(DeltaSource source, String name) {
      super(
          source.spark(),
          source.deltaLog(),
          source.catalogTableOpt(),
          source.options(),
          source.snapshotAtSourceInit(),
          source.metadataPath(),
          source.metadataTrackingLog(),
          source.filters());
      this.name = name;
    }

    /** What is there now is not yet all. */
    @Override
    public void prepareForTriggerAvailableNow() {}

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
      try {
        for (State state = of(name, 0); state != null; state = of(name, LOOKS_EVERY_MS)) {
          if (state == State.LEFT) return start;
          if (isFull(start, limit)) return super.latestOffset(start, limit);
        }
      } catch (InterruptedException stopped) {
        // As Spark ends a query that waits elsewhere.
        throw new UncheckedIOException(new InterruptedIOException("the query is stopped"));
      }
      if (!isPrepared) {
        isPrepared = true;
        super.prepareForTriggerAvailableNow();
      }
      return super.latestOffset(start, limit);
    }

    /** Whether there is so much that more of it would make no difference to the batch. */
    private boolean isFull(Offset start, ReadLimit limit) {
      Option<DeltaSource.AdmissionLimits> limits = DeltaSource.AdmissionLimits$.MODULE$.apply(options(), limit);
      if (limits.isEmpty()) return false;
      long version, index;
      if (start != null) {
        DeltaSourceOffset offset = toDeltaSourceOffset(start);
        if (offset.isInitialSnapshot()) return false;
        version = offset.reservoirVersion();
        index = offset.index();
      } else {
        Option<Object> first = getStartingVersion();
        if (first.isEmpty()) return false;
        version = (Long) first.get();
        index = DeltaSourceOffset.BASE_INDEX();
      }
      ClosableIterator<IndexedFile> files = getFileChangesWithRateLimit(version, index, false, limits);
      try {
        while (files.hasNext()) files.next();
      } finally {
        close(files);
      }
      return !limits.get().hasCapacity();
    }

    private static void close(ClosableIterator<IndexedFile> files) {
      try {
        files.close();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
