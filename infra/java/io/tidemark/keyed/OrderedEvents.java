package io.tidemark.keyed;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.streaming.ExpiredTimerInfo;
import org.apache.spark.sql.streaming.MapState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Holds events until the watermark has passed them, and hands them to a rule in the order of their event time.
 *
 * <p>Spark's key is a bucket of keys: what waits lies in one value of the bucket, with one timer, so that an event costs no
 * look at the state. What a rule keeps of a key lies in a map of the bucket.
 */
public final class OrderedEvents extends StatefulProcessor<Integer, Row, Row> {
  private static final int TIMER_MS = 0, SWEPT_US = 1, EVENTS = 2;
  private static final long NONE = Long.MIN_VALUE;

  private final Rule rule;
  private transient ValueState<Row> waiting;
  private transient MapState<byte[], Row> kept;

  private OrderedEvents(Rule rule) {
    this.rule = rule;
  }

  /**
   * What a rule gives for a stream.
   *
   * @param events with the columns of {@link Event#schemaWithKey} and `bucket`, a number; `time_us` carries the watermark
   * @param rule what becomes of them
   * @return rows with the columns of {@link Rule#givenSchema}
   */
  public static Dataset<Row> of(Dataset<Row> events, Rule rule) {
    return events
        .groupBy(new Column[] {events.col("bucket")})
        .as(Encoders.INT(), Encoders.row(events.schema()))
        .transformWithState(
            new OrderedEvents(rule), TimeMode.EventTime(), OutputMode.Append(), Encoders.row(Rule.givenSchema()));
  }

  @Override
  public void init(OutputMode outputMode, TimeMode timeMode) {
    rule.open();
    StructType ofBucket =
        new StructType(
            new StructField[] {
              Event.column("timer_ms", DataTypes.LongType, false),
              Event.column("swept_us", DataTypes.LongType, false),
              Event.column("events", Event.several(Event.schemaWithKey()), false)
            });
    waiting = getHandle().getValueState("waiting", Encoders.row(ofBucket), TTLConfig.NONE());
    kept = getHandle().getMapState("kept", Encoders.BINARY(), Encoders.row(Rule.keptSchema()), TTLConfig.NONE());
  }

  @Override
  public Iterator<Row> handleInputRows(Integer bucket, Iterator<Row> events, TimerValues clock) {
    return advance(events, clock.getCurrentWatermarkInMs(), false);
  }

  @Override
  public Iterator<Row> handleExpiredTimer(Integer bucket, TimerValues clock, ExpiredTimerInfo timer) {
    return advance(null, clock.getCurrentWatermarkInMs(), true);
  }

  private Iterator<Row> advance(Iterator<Row> more, long watermarkMs, boolean fired) {
    long watermarkUs = watermarkMs * 1000;
    Row before = waiting.get();
    Map<ByteBuffer, List<Row>> passed = new HashMap<>();
    List<Row> rest = new ArrayList<>();
    for (Row event : Event.in(before, EVENTS)) {
      part(event, watermarkUs, passed, rest);
    }
    while (more != null && more.hasNext()) {
      part(more.next(), watermarkUs, passed, rest);
    }
    List<Row> given = new ArrayList<>();
    for (Map.Entry<ByteBuffer, List<Row>> each : passed.entrySet()) {
      take(each.getKey().array(), each.getValue(), watermarkUs, given);
    }
    long sweptUs = before == null ? watermarkUs : before.getLong(SWEPT_US);
    long outlivedAfterUs = rule.outlivedAfterUs();
    if (outlivedAfterUs > 0 && watermarkUs - sweptUs > outlivedAfterUs) {
      sweep(watermarkUs);
      sweptUs = watermarkUs;
    }
    long setMs = before == null ? NONE : before.getLong(TIMER_MS);
    long timerMs = timer(rest);
    if (timerMs != setMs) {
      // One that has fired is gone.
      if (setMs != NONE && !fired) {
        getHandle().deleteTimer(setMs);
      }
      if (timerMs != NONE) {
        getHandle().registerTimer(timerMs);
      }
    }
    waiting.update(RowFactory.create(timerMs, sweptUs, Event.array(rest)));
    return CollectionConverters.asScala(given.iterator());
  }

  private static void part(Row event, long watermarkUs, Map<ByteBuffer, List<Row>> passed, List<Row> rest) {
    if (event.getLong(Event.TIME_US) > watermarkUs) {
      rest.add(event);
    } else {
      ByteBuffer key = ByteBuffer.wrap((byte[]) event.get(Event.KEY));
      passed.computeIfAbsent(key, none -> new ArrayList<>()).add(event);
    }
  }

  private void take(byte[] key, List<Row> events, long watermarkUs, List<Row> given) {
    events.sort(Event.IN_ORDER);
    Row before = kept.getValue(key);
    Row after = rule.take(before, events, watermarkUs, given);
    if (after != null) {
      kept.updateValue(key, after);
    } else if (before != null) {
      kept.removeKey(key);
    }
  }

  /** When the first of the events has been passed; Spark's timers know milliseconds. */
  private static long timer(List<Row> events) {
    long firstUs = Long.MAX_VALUE;
    for (Row event : events) {
      firstUs = Math.min(firstUs, event.getLong(Event.TIME_US));
    }
    return events.isEmpty() ? NONE : -Math.floorDiv(-firstUs, 1000L);
  }

  /** Removes what is kept for keys of which nothing came for so long that no event asks for it any more. */
  private void sweep(long watermarkUs) {
    List<byte[]> outlived = new ArrayList<>();
    Iterator<Tuple2<byte[], Row>> all = kept.iterator();
    while (all.hasNext()) {
      Tuple2<byte[], Row> each = all.next();
      if (rule.outlived(each._2(), watermarkUs)) {
        outlived.add(each._1());
      }
    }
    outlived.forEach(kept::removeKey);
  }
}
