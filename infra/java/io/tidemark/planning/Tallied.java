package io.tidemark.planning;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.codegen.Block;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeBlock;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.FalseLiteral$;
import org.apache.spark.sql.catalyst.expressions.codegen.JavaCode;
import org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.collection.IterableOnce;
import scala.collection.Iterator;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Vector$;

/**
 * A condition that holds for every row, and adds up numbers of the rows that it is asked of.
 *
 * <p>Spark's own way to look at rows in passing, {@code observe}, ends the code that is generated for a stage, and takes
 * each row through an aggregation of its own. This one is a part of that code.
 */
public final class Tallied extends Expression implements Serializable {
  private final Expression[] numbers;
  private final RowTallies tallies;
  private transient RowTally tally;

  private Tallied(Expression[] numbers, RowTallies tallies) {
    this.numbers = numbers;
    this.tallies = tallies;
  }

  /**
   * The condition.
   *
   * @param numbers a call of some function, of SQL, whose arguments are the numbers: BIGINT; null: nothing is added
   * @param tallies where they are added up
   */
  public static Column of(Column numbers, RowTallies tallies) {
    Seq<Expression> arguments = ColumnNodeToExpressionConverter$.MODULE$.apply(numbers.node()).children();
    return ExpressionUtils.column(new Tallied(array(arguments), tallies));
  }

  private static Expression[] array(IterableOnce<Expression> expressions) {
    List<Expression> found = new ArrayList<>();
    for (Iterator<Expression> each = expressions.iterator(); each.hasNext(); ) found.add(each.next());
    return found.toArray(new Expression[0]);
  }

  @Override
  public boolean deterministic() {
    return false; // of each row it is to be asked once
  }

  @Override
  public boolean nullable() {
    return false;
  }

  @Override
  public DataType dataType() {
    return DataTypes.BooleanType;
  }

  @Override
  public Object eval(InternalRow row) {
    if (tally == null) tally = tallies.begin();
    tally.rows++;
    for (int i = 0; i < numbers.length; i++) {
      Object number = numbers[i].eval(row);
      if (number != null) tally.add(i, (Long) number);
    }
    return true;
  }

  @Override
  public ExprCode doGenCode(CodegenContext context, ExprCode code) {
    String all = context.addReferenceObj("tallies", tallies, RowTallies.class.getName());
    String tally =
        context.addMutableState(
            RowTally.class.getName(), "tally", name -> name + " = " + all + ".begin();", true, true);
    Block block = text(tally + ".rows++;");
    for (int i = 0; i < numbers.length; i++) {
      ExprCode number = numbers[i].genCode(context);
      String added = String.format("if (!(%s)) %s.add(%d, %s);", number.isNull(), tally, i, number.value());
      block = block.$plus(number.code()).$plus(text(added));
    }
    return new ExprCode(block, FalseLiteral$.MODULE$, JavaCode.expression("true", dataType()));
  }

  private static Block text(String java) {
    Seq<JavaCode> none = Vector$.MODULE$.empty();
    return new CodeBlock(new ArraySeq.ofRef<>(new String[] {java}), none);
  }

  @Override
  public Seq<Expression> children() {
    return new ArraySeq.ofRef<>(numbers);
  }

  @Override
  public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
    return new Tallied(array(children), tallies);
  }

  @Override
  public String toString() {
    return "tallied" + Arrays.toString(numbers);
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public Object productElement(int index) {
    return index == 0 ? children() : tallies;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof Tallied;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Tallied that && tallies == that.tallies && Arrays.equals(numbers, that.numbers);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(numbers);
  }
}
