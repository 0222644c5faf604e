package io.tidemark.keyed;

import java.util.List;
import java.util.stream.Collectors;
import org.apache.spark.sql.Row;

/** Measures over each so many consecutive events of a key, given with the last of them. */
public final class Counting extends Rule {
  private final int size;
  private final Measures measures;

  /**
   * @param size how many events a group has
   * @param measures over them
   */
  public Counting(int size, Measures measures) {
    this.size = size;
    this.measures = measures;
  }

  @Override
  void open() {
    measures.open();
  }

  @Override
  Row take(Row kept, List<Row> events, long watermarkUs, List<Row> given) {
    List<Row> all = keptEvents(kept);
    all.addAll(events);
    int begin = 0;
    for (; begin + size <= all.size(); begin += size) {
      List<Row> group = all.subList(begin, begin + size);
      given.add(given(group.get(size - 1).get(Event.PACKED), null, measures.over(group)));
    }
    List<Row> rest = all.subList(begin, all.size());
    return keep(rest.stream().map(Event::withoutKey).collect(Collectors.toList()), null);
  }
}
