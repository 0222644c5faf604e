package io.tidemark.planning;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.SparkDataStream;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator;
import org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamProgress;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What Spark knows of the batch that a streaming query runs right now, as JSON.
 *
 * <p>Python would ask for each part by itself, some forty times a batch.
 */
public final class RunningBatch {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The counts of a stateful operator that are added up. */
  private static final List<String> COUNTS =
      List.of("numRowsDroppedByWatermark", "numDroppedDuplicateRows", "numTotalStateRows");

  private static final String STORES_OPENED = "numStateStoreInstances";

  /** State stores that a task of an operator opens, where they are several. */
  private static final Map<String, Integer> STORES = Map.of("StreamingSymmetricHashJoin", 4);

  private RunningBatch() {}

  /**
   * The watermarks of the batch and of the one before (0 before the first), its clock, and where it begins and ends in each
   * source; a source of which nothing was read yet has no begin.
   *
   * @param query that runs it
   */
  public static String bounds(StreamingQueryWrapper query) {
    StreamExecution execution = query.streamingQuery();
    IncrementalExecution last = execution.lastExecution();
    ObjectNode found = JSON.createObjectNode();
    found.put("watermark_ms", last.offsetSeqMetadata().batchWatermarkMs());
    var before = last.prevOffsetSeqMetadata();
    found.put("late_watermark_ms", before.isDefined() ? before.get().batchWatermarkMs() : 0);
    found.put("batch_time_ms", last.offsetSeqMetadata().batchTimestampMs());
    add(found.putObject("sources"), execution.availableOffsets(), true);
    add(found.putObject("begins"), execution.committedOffsets(), false);
    return found.toString();
  }

  private static void add(ObjectNode offsets, StreamProgress progress, boolean all) {
    Iterator<Tuple2<SparkDataStream, Offset>> each = progress.iterator();
    while (each.hasNext()) {
      Tuple2<SparkDataStream, Offset> entry = each.next();
      String offset = entry._2() == null ? "" : entry._2().json();
      if (all || !offset.isEmpty()) offsets.put(entry._1().toString(), offset);
    }
  }

  /**
   * The sums of what its stateful operators have counted; how many tasks have opened their stores again; into how many
   * partitions they divide it, 0 without any.
   *
   * @param query that runs it
   */
  public static String state(StreamingQueryWrapper query) {
    ObjectNode found = JSON.createObjectNode();
    for (String name : COUNTS) found.put(name, 0L);
    found.put("repeated", 0L).put("partitions", 0);
    add(found, query.streamingQuery().lastExecution().executedPlan());
    return found.toString();
  }

  private static void add(ObjectNode found, SparkPlan node) {
    if (node instanceof StatefulOperator operator) {
      int partitions = operator.stateInfo().get().numPartitions();
      found.put("partitions", Math.max(partitions, found.get("partitions").asInt()));
      for (String name : COUNTS) found.put(name, found.get(name).asLong() + metric(node, name));
      if (!node.nodeName().contains("Restore")) {
        // Each task counts the stores that it has opened.
        long opened = metric(node, STORES_OPENED) - (long) STORES.getOrDefault(node.nodeName(), 1) * partitions;
        found.put("repeated", found.get("repeated").asLong() + Math.max(0, opened));
      }
    }
    Iterator<SparkPlan> children = node.children().iterator();
    while (children.hasNext()) add(found, children.next());
  }

  private static long metric(SparkPlan node, String name) {
    SQLMetric metric = CollectionConverters.asJava(node.metrics()).get(name);
    return metric == null ? 0 : metric.value();
  }
}
