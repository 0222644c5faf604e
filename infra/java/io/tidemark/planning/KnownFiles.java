package io.tidemark.planning;

import static scala.jdk.javaapi.CollectionConverters.asJava;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * An extension of Spark's sessions: a batch of a stream reads the files of Delta's that it was planned with, unasked.
 *
 * <p>Delta hands a batch its files, and then finds out with a query of Spark's which of them each scan wants, by their
 * partitions. Where a scan asks for none, those are all of them, and the query is a tenth of a small batch.
 */
public final class KnownFiles extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPreCBORule(session -> new OfStreams());
    return BoxedUnit.UNIT;
  }

  private static final class OfStreams extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.isStreaming() ? (LogicalPlan) plan.transformUp(new Replacing()) : plan;
    }
  }

  private static final class Replacing extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
    @Override
    public boolean isDefinedAt(LogicalPlan plan) {
      return plan instanceof LogicalRelation relation
          && relation.relation() instanceof HadoopFsRelation files
          && files.location().getClass() == TahoeBatchFileIndex.class;
    }

    @Override
    public <A extends LogicalPlan, B> B applyOrElse(A plan, Function1<A, B> otherwise) {
      if (!isDefinedAt(plan)) return otherwise.apply(plan);
      LogicalRelation relation = (LogicalRelation) (LogicalPlan) plan;
      HadoopFsRelation files = (HadoopFsRelation) relation.relation();
      HadoopFsRelation known =
          files.copy(
              new Index((TahoeBatchFileIndex) files.location()),
              files.partitionSchema(),
              files.dataSchema(),
              files.bucketSpec(),
              files.fileFormat(),
              files.options(),
              files.sparkSession());
      @SuppressWarnings("unchecked")
      B replaced =
          (B)
              relation.copy(
                  known, relation.output(), relation.catalogTable(), relation.isStreaming(), relation.stream());
      return replaced;
    }
  }

  private static final class Index extends TahoeBatchFileIndex {
    Index(TahoeBatchFileIndex index) {
      super(
          index.spark(),
          index.actionType(),
          index.addFiles(),
          index.deltaLog(),
          index.path(),
          index.snapshot(),
          index.partitionFiltersGenerated());
    }

    @Override
    public Seq<AddFile> matchingFiles(Seq<Expression> ofPartitions, Seq<Expression> ofRows) {
      return asJava(ofPartitions).isEmpty() ? addFiles() : super.matchingFiles(ofPartitions, ofRows);
    }
  }
}
