package io.tidemark.planning;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.TaskCompletionListener;

/** What the tasks of a job have added up, of those rows that {@link Tallied} was asked of. */
public final class RowTallies extends AccumulatorV2<RowTally, List<RowTally>> {
  private final boolean[] mixed;
  private final List<RowTally> found = new ArrayList<>();

  private RowTallies(boolean[] mixed) {
    this.mixed = mixed;
  }

  /**
   * New ones, of which tasks report to the driver.
   *
   * @param context of Spark
   * @param kinds of each number a letter: {@code x} for one that is mixed by exclusive or, any other for one to add
   */
  public static RowTallies of(SparkContext context, String kinds) {
    boolean[] mixed = new boolean[kinds.length()];
    for (int i = 0; i < mixed.length; i++) mixed[i] = kinds.charAt(i) == 'x';
    RowTallies made = new RowTallies(mixed);
    context.register(made);
    return made;
  }

  /** What the rows of this task are added to; its task reports it when it ends. */
  public RowTally begin() {
    TaskContext task = TaskContext.get();
    RowTally tally = new RowTally(task == null ? 0 : task.partitionId(), mixed);
    // Without a task it is the driver that asks, of rows which it has.
    if (task == null) add(tally);
    else task.addTaskCompletionListener((TaskCompletionListener) ended -> add(tally));
    return tally;
  }

  /** The sums, then how many rows there were, then how often tasks with rows have run again; with blanks between them. */
  public String totals() {
    RowTally total = new RowTally(0, mixed);
    long[] totals = new long[mixed.length + 2];
    Set<Integer> partitions = new HashSet<>();
    for (RowTally tally : value()) {
      total.add(tally);
      if (tally.rows > 0 && !partitions.add(tally.partition())) totals[mixed.length + 1]++;
    }
    System.arraycopy(total.sums(), 0, totals, 0, mixed.length);
    totals[mixed.length] = total.rows;
    return Arrays.stream(totals).mapToObj(Long::toString).collect(Collectors.joining(" "));
  }

  @Override
  public synchronized boolean isZero() {
    return found.isEmpty();
  }

  @Override
  public synchronized AccumulatorV2<RowTally, List<RowTally>> copy() {
    RowTallies same = new RowTallies(mixed);
    same.found.addAll(found);
    return same;
  }

  @Override
  public synchronized void reset() {
    found.clear();
  }

  @Override
  public synchronized void add(RowTally tally) {
    found.add(tally);
  }

  @Override
  public void merge(AccumulatorV2<RowTally, List<RowTally>> other) {
    for (RowTally each : other.value()) add(each);
  }

  @Override
  public synchronized List<RowTally> value() {
    return new ArrayList<>(found);
  }
}
