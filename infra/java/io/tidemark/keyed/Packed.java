package io.tidemark.keyed;

import java.io.Serializable;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.ArraySeq;

/**
 * A struct as one binary value, in the layout that Spark's own rows have in memory.
 *
 * <p>A processor hands it on, or keeps it, without a look at its columns; equal structs have equal bytes.
 */
public final class Packed implements Serializable {
  private final StructType schema;
  private transient UnsafeProjection toBytes;

  Packed(StructType schema) {
    this.schema = schema;
  }

  /** The bytes of a struct. Public for the code that Spark generates. */
  public byte[] pack(InternalRow struct) {
    if (toBytes == null) {
      toBytes = UnsafeProjection.create(schema);
    }
    return toBytes.apply(struct).getBytes().clone();
  }

  /** The struct of bytes, without a copy of them. Public for the code that Spark generates. */
  public InternalRow unpack(byte[] bytes) {
    return row(bytes, schema.length());
  }

  static UnsafeRow row(byte[] bytes, int columns) {
    UnsafeRow row = new UnsafeRow(columns);
    row.pointTo(bytes, bytes.length);
    return row;
  }

  /**
   * A column with the bytes of a struct; null where that is.
   *
   * @param schema of the struct
   * @param struct the column
   */
  public static Column packed(StructType schema, Column struct) {
    return call("pack", schema, DataTypes.BinaryType, struct);
  }

  /**
   * A column with the struct of bytes; null where those are.
   *
   * @param schema of the struct
   * @param bytes the column
   */
  public static Column unpacked(StructType schema, Column bytes) {
    return call("unpack", schema, schema, bytes);
  }

  private static Column call(String method, StructType schema, DataType result, Column argument) {
    Expression codec = Literal.fromObject(new Packed(schema), new ObjectType(Packed.class));
    Expression[] arguments = {ExpressionUtils.expression(argument)};
    boolean nullForNull = true, mayBeNull = true, sameForSame = true;
    return ExpressionUtils.column(
        new Invoke(
            codec,
            method,
            result,
            ArraySeq.unsafeWrapArray(arguments),
            ArraySeq.unsafeWrapArray(new AbstractDataType[0]),
            nullForNull,
            mayBeNull,
            sameForSame));
  }
}
