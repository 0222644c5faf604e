package io.tidemark.planning;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import scala.collection.immutable.ArraySeq;

/**
 * Where the rows of a batch stand, from their order, as columns: what a join with a small table would find.
 *
 * <p>The order of a row is Spark's `monotonically_increasing_id`: its partition, and its number there. The code that
 * Spark generates is the same for all batches.
 */
public final class RowPlaces implements Serializable {
  private static final int PARTITION_BITS = 33;

  private final long[] before, firsts, lines;

  /**
   * @param before JSON: of each partition how many rows of the batch come before it
   * @param firsts JSON: of each piece of a file the order of its first row, ascending
   * @param lines JSON: of each piece how many lines of its file come before it
   */
  public RowPlaces(String before, String firsts, String lines) throws IOException {
    ObjectMapper json = new ObjectMapper();
    this.before = json.readValue(before, long[].class);
    this.firsts = json.readValue(firsts, long[].class);
    this.lines = json.readValue(lines, long[].class);
  }

  /** The number of a row in its batch, from 0, without gaps; of type BIGINT. */
  public Column numbers(Column order) {
    return called("number", order);
  }

  /** The number of a row in its file, from 0, of type BIGINT; for rows that are lines of files. */
  public Column positions(Column order) {
    return called("position", order);
  }

  /** As `numbers`, of one row; called by the code that Spark generates. */
  public long number(long order) {
    int partition = (int) (order >>> PARTITION_BITS);
    long start = partition < before.length ? before[partition] : 0;
    return start + (order & ((1L << PARTITION_BITS) - 1));
  }

  /** As `positions`, of one row; called by the code that Spark generates. */
  public long position(long order) {
    int found = Arrays.binarySearch(firsts, order);
    int piece = found >= 0 ? found : -found - 2;
    return piece < 0 ? order : order - firsts[piece] + lines[piece];
  }

  private Column called(String name, Column order) {
    return ExpressionUtils.column(
        new Invoke(
            Literal.fromObject(this, new ObjectType(RowPlaces.class)),
            name,
            DataTypes.LongType,
            ArraySeq.unsafeWrapArray(new Expression[] {ExpressionUtils.expression(order)}),
            ArraySeq.unsafeWrapArray(new AbstractDataType[0]),
            true,
            false,
            true));
  }

  @Override
  public String toString() {
    return "places of " + firsts.length + " pieces";
  }
}
