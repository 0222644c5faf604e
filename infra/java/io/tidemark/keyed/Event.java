package io.tidemark.keyed;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.ArraySeq;

/** An event as the state has it: when it happened, its place among those of one instant, its side, and all of it, packed. */
final class Event {
  static final int TIME_US = 0, SEQ = 1, SIDE = 2, PACKED = 3, KEY = 4;

  /** Side of the events that are put beside others: the table that a step names. */
  static final int OTHER = 0;

  /** By event time; of one instant those of the other side first, then by their number in order of arrival. */
  static final Comparator<Row> IN_ORDER =
      Comparator.<Row>comparingLong(event -> event.getLong(TIME_US))
          .thenComparingInt(event -> event.getInt(SIDE))
          .thenComparingLong(event -> event.getLong(SEQ));

  private Event() {}

  static StructField column(String name, DataType type, boolean nullable) {
    return DataTypes.createStructField(name, type, nullable);
  }

  /** The schema of events whose key stands elsewhere. */
  static StructType schema() {
    return new StructType(
        new StructField[] {
          column("time_us", DataTypes.LongType, false),
          column("seq", DataTypes.LongType, false),
          column("side", DataTypes.IntegerType, false),
          column("event", DataTypes.BinaryType, false)
        });
  }

  static StructType schemaWithKey() {
    return schema().add("key", DataTypes.BinaryType, false);
  }

  static ArrayType several(StructType schema) {
    return new ArrayType(schema, false);
  }

  static Row withoutKey(Row event) {
    return RowFactory.create(event.get(TIME_US), event.get(SEQ), event.get(SIDE), event.get(PACKED));
  }

  /** The events of an array in a row; none where the row is null. */
  static ArrayList<Row> in(Row row, int column) {
    ArrayList<Row> found = new ArrayList<>();
    if (row != null) {
      scala.collection.Seq<Row> events = row.getSeq(column);
      for (int i = 0; i < events.length(); i++) {
        found.add(events.apply(i));
      }
    }
    return found;
  }

  static ArraySeq<Row> array(List<Row> events) {
    return ArraySeq.unsafeWrapArray(events.toArray(new Row[0]));
  }
}
