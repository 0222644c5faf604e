package io.tidemark.planning;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.codegen.ByteCodeStats;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator$;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.GeneratedClass;
import org.apache.spark.sql.execution.BufferedRowIterator;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.slf4j.LoggerFactory;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.reflect.ClassTag$;

/** The code that Spark has generated for a stage over one input, as what a task does with its rows. */
final class GeneratedStage extends RowsOfTask {
  private final CodeAndComment code;
  private final Object[] references;

  private GeneratedStage(CodeAndComment code, Object[] references) {
    this.code = code;
    this.references = references;
  }

  /** The code of a stage; null where Spark would run it without, as Java cannot compile it or would not make it fast. */
  static GeneratedStage of(WholeStageCodegenExec stage) {
    Tuple2<CodegenContext, CodeAndComment> generated = stage.doCodeGen();
    try {
      ByteCodeStats stats = CodeGenerator$.MODULE$.compile(generated._2())._2();
      if (stats.maxMethodCodeSize() > stage.conf().hugeMethodLimit()) return null;
    } catch (Exception | LinkageError error) {
      LoggerFactory.getLogger(GeneratedStage.class).warn("Code of small batches does not compile, and is interpreted", error);
      return null;
    }
    return new GeneratedStage(
        generated._2(), (Object[]) generated._1().references().toArray(ClassTag$.MODULE$.apply(Object.class)));
  }

  @Override
  public InternalRow[] apply(TaskContext task, Iterator<InternalRow> rows) {
    GeneratedClass compiled = CodeGenerator$.MODULE$.compile(code)._1();
    BufferedRowIterator given = (BufferedRowIterator) compiled.generate(references);
    @SuppressWarnings("unchecked")
    Iterator<InternalRow>[] inputs = new Iterator[] {rows};
    given.init(task.partitionId(), inputs);
    List<InternalRow> found = new ArrayList<>();
    try {
      while (given.hasNext()) found.add(given.next().copy());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return found.toArray(new InternalRow[0]);
  }
}
