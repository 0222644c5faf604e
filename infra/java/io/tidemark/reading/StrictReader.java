package io.tidemark.reading;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.time.ZoneId;
import java.util.Arrays;
import java.util.HashSet;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.ArraySeq;

/** A reader of events as an expression of Spark's: it gives the columns, and a verdict where there are none. */
public abstract class StrictReader implements Serializable {
  protected final StructType schema;
  protected final String[] columns;
  protected final Slot[] slots;
  private final String format;
  private final String wrongType, mask;
  private final HashSet<String> personal = new HashSet<>();

  protected transient Trail trail;
  private transient Faults faults;

  /**
   * @param format that events are written in, as messages name it
   * @param schema of the columns
   * @param options JSON: {@code columns}: their {@code type} as messages name it, and how their values are written
   *     ({@code unit}, {@code pattern}, {@code rounding}); {@code zone} of times that name none; {@code
   *     wrong_type}: the reason of a value of another type; {@code personal}: columns that are shown as {@code mask}
   */
  protected StrictReader(String format, StructType schema, String options) throws IOException {
    JsonNode given = new ObjectMapper().readTree(options);
    this.format = format;
    this.schema = schema.asNullable();
    columns = schema.fieldNames();
    ZoneId zone = ZoneId.of(given.path("zone").asText("UTC"));
    wrongType = given.path("wrong_type").asText("unparseable");
    mask = given.path("mask").asText("***");
    given.path("personal").forEach(name -> personal.add(name.asText()));
    slots = new Slot[columns.length];
    for (int i = 0; i < columns.length; i++) {
      JsonNode column = given.path("columns").path(columns[i]);
      slots[i] = Slot.of(schema.fields()[i].dataType(), column, zone);
      if (column.has("type")) slots[i].type = column.get("type").asText();
    }
  }

  /** The type of the struct that is read. */
  public abstract StructType result();

  /**
   * The expression that reads a column. It is not deterministic to Spark: else each filter above it and each field of
   * its struct would read the event once more.
   */
  public Column of(Column events) {
    Expression reader = Literal.fromObject(this, new ObjectType(getClass()));
    return ExpressionUtils.column(
        new Invoke(
            reader,
            "read",
            result(),
            ArraySeq.unsafeWrapArray(new Expression[] {ExpressionUtils.expression(events)}),
            ArraySeq.unsafeWrapArray(new AbstractDataType[0]),
            false, // an event that is null gets a verdict, too
            false,
            false));
  }

  @Override
  public String toString() {
    return "strict " + format;
  }

  protected final StructType verdictAfter(StructType columns) {
    return columns.add("__reason", DataTypes.StringType, true).add("__detail", DataTypes.StringType, true);
  }

  /** Begins with another event. */
  protected final Faults begin() {
    if (faults == null) {
      faults = new Faults(wrongType, personal, mask);
      trail = new Trail();
    }
    faults.clear();
    trail.clear();
    return faults;
  }

  protected final Faults faults() {
    return faults;
  }

  /** Takes the values back and gives the verdict. */
  protected final void refuse(Object[] values, int reasonAt) {
    Arrays.fill(values, null);
    values[reasonAt] = faults.reason();
    values[reasonAt + 1] = faults.detail(format);
  }
}
