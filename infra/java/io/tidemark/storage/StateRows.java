package io.tidemark.storage;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore$;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.mutable.HashMap;

/**
 * Rows in the state of a streaming query, by the names of Spark's state stores.
 *
 * <p>Spark's metrics add up all stores of an operator, so that they do not tell the two sides of a join apart. Only the
 * stores of this JVM are seen.
 */
public final class StateRows {
  private StateRows() {}

  /**
   * Counts the rows of the stores that are loaded.
   *
   * @param run of the query, as its progress names it
   * @return name of the store -> its rows in all partitions
   * @throws ReflectiveOperationException if this version of Spark keeps its stores elsewhere
   */
  @SuppressWarnings("unchecked")
  public static Map<String, Long> byStore(String run) throws ReflectiveOperationException {
    StateStore$ stores = StateStore$.MODULE$;
    Field field = StateStore$.class.getDeclaredField("loadedProviders");
    field.setAccessible(true);
    HashMap<StateStoreProviderId, StateStoreProvider> loaded =
        (HashMap<StateStoreProviderId, StateStoreProvider>) field.get(stores);
    Map<String, Long> rows = new TreeMap<>();
    // Spark itself guards it so.
    synchronized (loaded) {
      Iterator<Tuple2<StateStoreProviderId, StateStoreProvider>> entries = loaded.iterator();
      while (entries.hasNext()) {
        Tuple2<StateStoreProviderId, StateStoreProvider> entry = entries.next();
        boolean ofQuery = entry._1().queryRunId().toString().equals(run);
        if (ofQuery && entry._2() instanceof RocksDBStateStoreProvider provider) {
          Option<?> metrics = provider.rocksDB().metricsOpt();
          long keys = metrics.isEmpty() ? 0 : provider.rocksDB().metricsOpt().get().numCommittedKeys();
          rows.merge(entry._1().storeId().storeName(), keys, Long::sum);
        }
      }
    }
    return rows;
  }
}
