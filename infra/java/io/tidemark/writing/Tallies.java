package io.tidemark.writing;

import org.apache.spark.util.AccumulatorV2;

/** The tallies of a job's tasks, added up. Of a task of the job's last stage Spark adds one, however often it runs. */
public final class Tallies extends AccumulatorV2<Tally, Tally> {
  private final int columns;
  private Tally sum;

  /** @param columns that are counted */
  public Tallies(int columns) {
    this.columns = columns;
  }

  @Override
  public boolean isZero() {
    return sum == null;
  }

  @Override
  public AccumulatorV2<Tally, Tally> copy() {
    Tallies same = new Tallies(columns);
    same.add(value());
    return same;
  }

  @Override
  public void reset() {
    sum = null;
  }

  @Override
  public synchronized void add(Tally tally) {
    if (sum == null) sum = new Tally(columns);
    sum.merge(tally);
  }

  @Override
  public void merge(AccumulatorV2<Tally, Tally> other) {
    if (!other.isZero()) add(other.value());
  }

  @Override
  public synchronized Tally value() {
    return sum == null ? new Tally(columns) : sum;
  }
}
