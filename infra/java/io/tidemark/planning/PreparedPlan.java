package io.tidemark.planning;

import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.arrow.ArrowBatchStreamWriter;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * What is computed of the few rows of each batch, planned and compiled once.
 *
 * <p>Spark analyses, optimises and plans each frame, and generates its code, to find that the code is there already: of a
 * small batch that takes as long as its job. This takes the plan of the first batch for all. What it gives is few: the last
 * columns are computed here, which Spark would have each task compile.
 */
public final class PreparedPlan {
  private final StructType given, gives;
  private final SQLConf conf;
  private final SparkPlan plan;
  private final GeneratedStage code;
  private final UnsafeProjection last;

  /**
   * @param standIn rows without a batch
   * @param computed of them
   */
  public PreparedPlan(Dataset<Row> standIn, Dataset<Row> computed) {
    given = standIn.schema();
    gives = computed.schema();
    conf = computed.sparkSession().sessionState().conf();
    SparkPlan whole = computed.queryExecution().executedPlan();
    plan = whole instanceof ProjectExec project ? project.child() : whole;
    last = whole instanceof ProjectExec project ? projection(project) : null;
    if (!overOneScan(plan)) throw new IllegalArgumentException("expected a plan over the rows of one batch, found\n" + whole);
    code = plan instanceof WholeStageCodegenExec stage && isWhole(stage) ? GeneratedStage.of(stage) : null;
  }

  @SuppressWarnings("unchecked")
  private static UnsafeProjection projection(ProjectExec project) {
    Seq<Expression> columns = (Seq<Expression>) (Seq<?>) project.projectList();
    UnsafeProjection found = UnsafeProjection.create(columns, project.child().output());
    found.initialize(0);
    return found;
  }

  private static boolean overOneScan(SparkPlan plan) {
    if (plan instanceof RDDScanExec) return true;
    Iterator<SparkPlan> children = plan.children().iterator();
    return children.hasNext() && overOneScan(children.next()) && !children.hasNext();
  }

  /** Whether the code reads the rows of the batch, and not those of a part that Spark computes without code. */
  private static boolean isWhole(WholeStageCodegenExec stage) {
    return !stage.exists(part -> part instanceof InputAdapter);
  }

  /**
   * Rows of which nothing is known but their columns.
   *
   * <p>Of the rows of a batch Spark knows more, and leaves out of their plan what they do not need: that a column is null in
   * all of them, for one. The next batch may need it.
   *
   * @param batch as Spark hands it over
   */
  public static Dataset<Row> standIn(Dataset<Row> batch) {
    RDD<InternalRow> none = batch.sparkSession().sparkContext().emptyRDD(ClassTag$.MODULE$.apply(InternalRow.class));
    return batch.sparkSession().internalCreateDataFrame(none, batch.schema().asNullable(), false);
  }

  /**
   * What is computed of a batch, by one job, in a stream of Arrow's format.
   *
   * @param batch as Spark hands it over, with the columns of the one that stood in
   */
  public byte[] fetch(Dataset<Row> batch) {
    if (!DataType.equalsIgnoreNullability(given, batch.schema()))
      throw new IllegalArgumentException("expected rows of " + given.sql() + ", found " + batch.schema().sql());
    RDD<InternalRow> rows = rows(batch);
    InternalRow[][] parts = code == null ? computed(over(rows, plan).execute(), new Copied()) : computed(rows, code);
    List<InternalRow> computed = new ArrayList<>();
    for (InternalRow[] part : parts)
      for (InternalRow row : part) computed.add(last == null ? row : last.apply(row).copy());
    return asArrow(computed);
  }

  private static InternalRow[][] computed(RDD<InternalRow> rows, RowsOfTask compute) {
    return (InternalRow[][]) rows.context().runJob(rows, compute, ClassTag$.MODULE$.apply(InternalRow[].class));
  }

  private byte[] asArrow(List<InternalRow> computed) {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    String zone = conf.sessionLocalTimeZone();
    boolean large = conf.arrowUseLargeVarTypes();
    ArrowBatchStreamWriter writer = new ArrowBatchStreamWriter(gives, out, zone, false, large);
    Iterator<InternalRow> rows = CollectionConverters.asScala(computed.iterator());
    // Outside of a task nobody else closes it, which holds memory beside the heap.
    try (var batches = ArrowConverters$.MODULE$.toBatchIterator(rows, gives, 0, zone, false, large, null)) {
      if (rows.hasNext()) writer.writeBatches(batches);
    }
    writer.end();
    return out.toByteArray();
  }

  private static RDD<InternalRow> rows(Dataset<Row> batch) {
    LogicalPlan analyzed = batch.queryExecution().analyzed();
    return analyzed instanceof LogicalRDD known ? known.rdd() : batch.queryExecution().toRdd();
  }

  /** The plan over these rows; a new one, as a plan gives its rows once. */
  private static SparkPlan over(RDD<InternalRow> rows, SparkPlan plan) {
    if (plan instanceof RDDScanExec scan)
      return scan.copy(
          scan.output(), rows, scan.name(), scan.outputPartitioning(), scan.outputOrdering(), scan.stream());
    SparkPlan child = over(rows, plan.children().iterator().next());
    return (SparkPlan) plan.withNewChildren(new ArraySeq.ofRef<>(new SparkPlan[] {child}));
  }

  /** Rows that a task has computed. */
  private static final class Copied extends RowsOfTask {
    @Override
    public InternalRow[] apply(TaskContext task, Iterator<InternalRow> rows) {
      List<InternalRow> found = new ArrayList<>();
      while (rows.hasNext()) found.add(rows.next().copy());
      return found.toArray(new InternalRow[0]);
    }
  }
}
