package io.tidemark.keyed;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;
import org.apache.spark.sql.catalyst.expressions.MutableProjection$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.execution.window.AggregateProcessor;
import org.apache.spark.sql.execution.window.AggregateProcessor$;
import org.apache.spark.sql.types.AbstractDataType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** SQL aggregates over packed events, computed by the functions that Spark's own operators use. */
public final class Measures implements Serializable {
  private final Seq<Attribute> columns;
  private final int width;
  private final ArrayList<AggregateExpression> aggregates;
  private final Expression[] functions;
  private final Option<Expression>[] filters;
  private final Expression[] results;
  private final StructType schema;
  private final String notRunning;

  private transient AggregateProcessor whole;
  private transient MutableProjection begin, update, evaluate;
  private transient UnsafeProjection pack, packTotal;
  private transient GenericInternalRow found, total;
  private transient JoinedRow joined;

  /**
   * @param aggregated an analysed `SELECT aggregate AS name, … FROM events`; its columns are those of a packed event
   * @throws IllegalArgumentException if one of them counts each value once, which needs more than one pass
   */
  @SuppressWarnings("unchecked")
  public Measures(Dataset<Row> aggregated) {
    Aggregate plan =
        (Aggregate)
            ReplaceExpressions$.MODULE$.apply(
                ((org.apache.spark.sql.classic.Dataset<Row>) aggregated).queryExecution().analyzed());
    columns = plan.child().output();
    width = plan.child().schema().length();
    aggregates = new ArrayList<>();
    List<Expression> given = new ArrayList<>();
    List<StructField> fields = new ArrayList<>();
    for (NamedExpression each : CollectionConverters.asJava(plan.aggregateExpressions())) {
      Expression result = ((Alias) each).child();
      given.add(withPlaces(result, aggregates));
      fields.add(Event.column(each.name(), result.dataType(), true));
    }
    functions = aggregates.stream().map(AggregateExpression::aggregateFunction).toArray(Expression[]::new);
    filters = aggregates.stream().map(AggregateExpression::filter).toArray(Option[]::new);
    results = given.toArray(new Expression[0]);
    schema = new StructType(fields.toArray(new StructField[0]));
    notRunning =
        aggregates.stream()
            .filter(each -> !(each.aggregateFunction() instanceof DeclarativeAggregate))
            .map(each -> each.aggregateFunction().prettyName())
            .findFirst()
            .orElse(null);
  }

  /** The columns that the aggregates give. */
  public StructType schema() {
    return schema;
  }

  /** The first function whose state cannot be kept from batch to batch; null: all can. */
  public String notRunning() {
    return notRunning;
  }

  /** The aggregate functions alone, for Spark's window operator. */
  public List<Column> aggregates() {
    List<Column> found = new ArrayList<>();
    for (AggregateExpression each : aggregates) {
      found.add(ExpressionUtils.column(each));
    }
    return found;
  }

  /** What the aggregates give, of columns that have a prefix and the number of a function. */
  public List<Column> results(String prefix) {
    List<Column> found = new ArrayList<>();
    for (Expression each : results) {
      found.add(ExpressionUtils.column(replaced(each, prefix)));
    }
    return found;
  }

  /**
   * A column with what the aggregates give, of what `total` gave.
   *
   * @param kept the column
   */
  public Column now(Column kept) {
    Expression[] arguments = {ExpressionUtils.expression(kept)};
    return ExpressionUtils.column(
        new Invoke(
            Literal.fromObject(this, new ObjectType(Measures.class)),
            "evaluated",
            schema,
            ArraySeq.unsafeWrapArray(arguments),
            ArraySeq.unsafeWrapArray(new AbstractDataType[0]),
            true,
            true,
            true));
  }

  /** What the aggregates give, of what `total` gave. Public for the code that Spark generates. */
  public InternalRow evaluated(byte[] kept) {
    if (found == null) {
      open();
    }
    resume(kept);
    return Packed.row(now(), schema.length());
  }

  private static Expression replaced(Expression result, String prefix) {
    if (result instanceof BoundReference place) {
      return UnresolvedAttribute.quoted(prefix + place.ordinal());
    }
    return withChildren(result, child -> replaced(child, prefix));
  }

  private static Expression withPlaces(Expression result, List<AggregateExpression> found) {
    if (result instanceof AggregateExpression aggregate) {
      if (aggregate.isDistinct()) {
        throw new IllegalArgumentException(aggregate.sql() + " counts each value once");
      }
      found.add(aggregate);
      return new BoundReference(found.size() - 1, aggregate.dataType(), true);
    }
    return withChildren(result, child -> withPlaces(child, found));
  }

  private static Expression withChildren(Expression parent, Function<Expression, Expression> change) {
    List<Expression> children = new ArrayList<>();
    for (Expression child : CollectionConverters.asJava(parent.children())) {
      children.add(change.apply(child));
    }
    return children.isEmpty() ? parent : (Expression) parent.withNewChildren(seq(children));
  }

  @SuppressWarnings("unchecked")
  private static <T> Seq<T> seq(List<? extends T> values) {
    return (Seq<T>) ArraySeq.unsafeWrapArray(values.toArray());
  }

  void open() {
    found = new GenericInternalRow(functions.length);
    pack = UnsafeProjection.create(ArraySeq.unsafeWrapArray(results));
    if (notRunning != null) {
      whole =
          AggregateProcessor$.MODULE$.apply(
              functions, 0, columns, (exprs, attributes) -> MutableProjection$.MODULE$.create(exprs, attributes), filters);
      return;
    }
    List<Attribute> state = new ArrayList<>();
    List<Expression> first = new ArrayList<>(), next = new ArrayList<>(), last = new ArrayList<>();
    for (int i = 0; i < functions.length; i++) {
      DeclarativeAggregate function = (DeclarativeAggregate) functions[i];
      List<AttributeReference> own = CollectionConverters.asJava(function.aggBufferAttributes());
      state.addAll(own);
      first.addAll(CollectionConverters.asJava(function.initialValues()));
      List<Expression> updates = CollectionConverters.asJava(function.updateExpressions());
      for (int j = 0; j < updates.size(); j++) {
        next.add(
            filters[i].isEmpty() ? updates.get(j) : new If(filters[i].get(), updates.get(j), own.get(j)));
      }
      last.add(function.evaluateExpression());
    }
    List<Attribute> both = new ArrayList<>(state);
    both.addAll(CollectionConverters.asJava(columns));
    total = new GenericInternalRow(state.size());
    joined = new JoinedRow();
    begin = MutableProjection$.MODULE$.create(seq(first), seq(new ArrayList<Attribute>())).target(total);
    update = MutableProjection$.MODULE$.create(seq(next), seq(both)).target(total);
    evaluate = MutableProjection$.MODULE$.create(seq(last), seq(state)).target(found);
    packTotal = UnsafeProjection.create(state.stream().map(Attribute::dataType).toArray(DataType[]::new));
  }

  private InternalRow unpacked(Row event) {
    return Packed.row((byte[]) event.get(Event.PACKED), width);
  }

  /** The aggregates over events, packed. */
  byte[] over(List<Row> events) {
    if (whole == null) {
      resume(null);
      events.forEach(this::add);
      return now();
    }
    whole.initialize(events.size());
    for (Row event : events) {
      whole.update(unpacked(event));
    }
    whole.evaluate(found);
    return packed();
  }

  /** Goes on from what `total` gave; null: from nothing. */
  void resume(byte[] kept) {
    begin.apply(null);
    if (kept != null) {
      InternalRow row = Packed.row(kept, total.numFields());
      List<Attribute> state = new ArrayList<>();
      for (Expression function : functions) {
        state.addAll(CollectionConverters.asJava(((DeclarativeAggregate) function).aggBufferAttributes()));
      }
      for (int i = 0; i < state.size(); i++) {
        total.update(i, row.get(i, state.get(i).dataType()));
      }
    }
  }

  void add(Row event) {
    update.apply(joined.apply(total, unpacked(event)));
  }

  /** The aggregates over all that was added, packed. */
  byte[] now() {
    evaluate.apply(total);
    return packed();
  }

  /** What the aggregates need in order to go on, packed. */
  byte[] total() {
    return packTotal.apply(total).getBytes().clone();
  }

  private byte[] packed() {
    return pack.apply(found).getBytes().clone();
  }
}
