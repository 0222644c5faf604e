package io.tidemark.planning;

import java.io.Serializable;

/** Numbers of the rows of one task, added up; generated code counts here. */
public final class RowTally implements Serializable {
  private final int partition;
  private final boolean[] mixed;
  private final long[] sums;

  /** How many rows there were. */
  public long rows;

  RowTally(int partition, boolean[] mixed) {
    this.partition = partition;
    this.mixed = mixed;
    sums = new long[mixed.length];
  }

  /** Adds the number of a row to those before, or mixes it with them: of these each bit is kept by exclusive or. */
  public void add(int index, long number) {
    if (mixed[index]) sums[index] ^= number;
    else sums[index] += number;
  }

  void add(RowTally other) {
    rows += other.rows;
    for (int i = 0; i < sums.length; i++) add(i, other.sums[i]);
  }

  int partition() {
    return partition;
  }

  long[] sums() {
    return sums;
  }
}
