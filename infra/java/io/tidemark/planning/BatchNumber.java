package io.tidemark.planning;

import java.io.Serializable;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.classic.ExpressionUtils;

/**
 * A whole number that is another one in each batch, such as a watermark.
 *
 * <p>Plans and the code that Spark generates hold this object: the same ones serve each batch. Tasks have what it was when
 * their job began.
 */
public final class BatchNumber implements Serializable {
  private volatile long value;

  /** One that is this at first. */
  public BatchNumber(long value) {
    this.value = value;
  }

  /** A column of type BIGINT that has the number in each row. */
  public Column column() {
    return ExpressionUtils.column(new BatchValue(this));
  }

  /** What it is now. */
  public long get() {
    return value;
  }

  /** Has it be another one, for jobs that begin from now on. */
  public void set(long value) {
    this.value = value;
  }
}
