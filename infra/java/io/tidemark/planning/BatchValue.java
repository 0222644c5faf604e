package io.tidemark.planning;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.EmptyBlock$;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.FalseLiteral$;
import org.apache.spark.sql.catalyst.expressions.codegen.JavaCode;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.Function1;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Vector$;

/**
 * A {@link BatchNumber} as a value of each row.
 *
 * <p>Spark writes a literal into the code that it generates: with such a number in it, it would compile that code for
 * each batch, and Java would have to make it fast again each time. This one is handed to the code as an object.
 */
public final class BatchValue extends Expression implements Serializable {
  private final BatchNumber number;

  BatchValue(BatchNumber number) {
    this.number = number;
  }

  @Override
  public boolean nullable() {
    return false;
  }

  @Override
  public DataType dataType() {
    return DataTypes.LongType;
  }

  @Override
  public Object eval(InternalRow row) {
    return number.get();
  }

  @Override
  public ExprCode doGenCode(CodegenContext context, ExprCode code) {
    String read = context.addReferenceObj("batchNumber", number, BatchNumber.class.getName()) + ".get()";
    return new ExprCode(EmptyBlock$.MODULE$, FalseLiteral$.MODULE$, JavaCode.expression(read, dataType()));
  }

  @Override
  public Seq<Expression> children() {
    return Vector$.MODULE$.empty();
  }

  @Override
  public Expression mapChildren(Function1<Expression, Expression> change) {
    return this;
  }

  @Override
  public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
    return this;
  }

  @Override
  public String toString() {
    return "batch_value(" + number.get() + ")";
  }

  @Override
  public int productArity() {
    return 1;
  }

  @Override
  public Object productElement(int index) {
    return number;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof BatchValue;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof BatchValue that && number == that.number;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(number);
  }
}
