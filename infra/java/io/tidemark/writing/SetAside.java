package io.tidemark.writing;

import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.Function2;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.Seq;

/**
 * Judged rows on their way to data files: good ones pass and are counted, the others are kept with the driver.
 *
 * <p>So one job writes and judges, and no row is kept in memory that is not needed again.
 */
public final class SetAside implements Function2<Integer, Iterator<InternalRow>, Iterator<InternalRow>> {
  private final int reason, hash, marked, least, most;
  private final int[] counted;
  private final long room;
  private final StructType schema;
  private final Tallies tallies;

  /**
   * @param session that the rows are of
   * @param schema of the rows
   * @param reason column with why a row is not good; null: it is
   * @param hash column with a hash of the event
   * @param marked column that is true for good rows that are to be kept, too
   * @param counted columns whose values in good rows are counted
   * @param least column of texts, and
   * @param most another one, of which the first and the last are found; empty: there are none
   * @param room for rows that are kept, in bytes for each partition
   */
  public SetAside(
      SparkSession session,
      StructType schema,
      String reason,
      String hash,
      String marked,
      List<String> counted,
      String least,
      String most,
      long room) {
    this.schema = schema;
    this.reason = schema.fieldIndex(reason);
    this.hash = schema.fieldIndex(hash);
    this.marked = schema.fieldIndex(marked);
    this.counted = counted.stream().mapToInt(schema::fieldIndex).toArray();
    this.least = least.isEmpty() ? -1 : schema.fieldIndex(least);
    this.most = most.isEmpty() ? -1 : schema.fieldIndex(most);
    this.room = room;
    tallies = new Tallies(counted.size());
    session.sparkContext().register(tallies);
  }

  /** The good rows, to be computed once. */
  public RDD<InternalRow> passing(RDD<InternalRow> rows) {
    return rows.toJavaRDD().mapPartitionsWithIndex(this, true).rdd();
  }

  /** What was counted, as JSON, once a job has computed the good rows. */
  public String figures() {
    return tallies.value().figures();
  }

  /** The rows that were kept, once a job has computed the good ones; null: they were too many to be kept. */
  @SuppressWarnings("unchecked") // a Scala list of a subclass is one of the class
  public Dataset<Row> kept(SparkSession session) {
    List<InternalRow> rows = tallies.value().kept();
    if (rows == null) return null;
    Seq<InternalRow> data = new ArraySeq.ofRef<>(rows.toArray(new InternalRow[0]));
    Seq<Attribute> columns = (Seq<Attribute>) (Seq<?>) DataTypeUtils.toAttributes(schema);
    return Dataset.ofRows(session, new LocalRelation(columns, data, false, Option.empty()));
  }

  @Override
  public Iterator<InternalRow> call(Integer partition, Iterator<InternalRow> rows) {
    Tally tally = new Tally(counted.length);
    return new Iterator<>() {
      private InternalRow next;
      private boolean ended;

      @Override
      public boolean hasNext() {
        while (next == null && !ended) {
          if (rows.hasNext()) {
            InternalRow row = rows.next();
            if (passes(row, tally)) next = row;
          } else {
            ended = true;
            tally.endOf(partition);
            tallies.add(tally);
          }
        }
        return next != null;
      }

      @Override
      public InternalRow next() {
        if (!hasNext()) throw new NoSuchElementException();
        InternalRow row = next;
        next = null;
        return row;
      }
    };
  }

  private boolean passes(InternalRow row, Tally tally) {
    boolean good = row.isNullAt(reason);
    if (good) tally.good(row, row.getLong(hash), counted, least, most);
    else tally.bad(row.getUTF8String(reason).toString(), row.getLong(hash));
    if (!good || row.getBoolean(marked)) tally.keep(row, ((UnsafeRow) row).getSizeInBytes(), room);
    return good;
  }
}
