package io.tidemark.keyed;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** What becomes of the events of one key, once the watermark has passed them: what they give, and what is kept of them. */
abstract class Rule implements Serializable {
  private static final int EVENTS = 0, TOTAL = 1;

  /** Makes ready what cannot be sent from process to process. */
  void open() {}

  /**
   * Takes events that the watermark has passed.
   *
   * @param kept of the key; null: nothing is
   * @param events those of the key, in order of event time; all that come later are after them
   * @param watermarkUs where the watermark stands, in microseconds since 1970
   * @param given takes the rows that they give
   * @return what is kept of the key from now on; null: nothing
   */
  abstract Row take(Row kept, List<Row> events, long watermarkUs, List<Row> given);

  /** How long at least something is kept that no event will ask for, in microseconds; 0: nothing outlives its use. */
  long outlivedAfterUs() {
    return 0;
  }

  /** Whether no event past the watermark can ask for what is kept of a key. */
  boolean outlived(Row kept, long watermarkUs) {
    return false;
  }

  static StructType keptSchema() {
    return new StructType(
        new StructField[] {
          Event.column("events", Event.several(Event.schema()), false), Event.column("total", DataTypes.BinaryType, true)
        });
  }

  static Row keep(List<Row> events, byte[] total) {
    return events.isEmpty() && total == null ? null : RowFactory.create(Event.array(events), total);
  }

  static List<Row> keptEvents(Row kept) {
    return Event.in(kept, EVENTS);
  }

  static byte[] keptTotal(Row kept) {
    return kept == null ? null : (byte[]) kept.get(TOTAL);
  }

  static StructType givenSchema() {
    return new StructType(
        new StructField[] {
          Event.column("event", DataTypes.BinaryType, true),
          Event.column("other", DataTypes.BinaryType, true),
          Event.column("measures", DataTypes.BinaryType, true)
        });
  }

  static Row given(Object event, Object other, Object measures) {
    return RowFactory.create(event, other, measures);
  }
}
