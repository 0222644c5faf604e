package io.tidemark.keyed;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Row;

/** Each event with measures over those of its key in the time before it, itself included: (t - size, t]. */
public final class Sliding extends Rule {
  private final long sizeUs;
  private final Measures measures;

  /**
   * @param sizeUs the length of the window, in microseconds
   * @param measures over its events
   */
  public Sliding(long sizeUs, Measures measures) {
    this.sizeUs = sizeUs;
    this.measures = measures;
  }

  @Override
  void open() {
    measures.open();
  }

  @Override
  Row take(Row kept, List<Row> events, long watermarkUs, List<Row> given) {
    List<Row> all = keptEvents(kept);
    int first = all.size();
    all.addAll(events);
    int begin = 0, end = first;
    for (int at = first; at < all.size(); at++) {
      long timeUs = time(all, at);
      while (time(all, begin) <= timeUs - sizeUs) {
        begin++;
      }
      // Events of one instant belong to the windows of each other.
      while (end < all.size() && time(all, end) == timeUs) {
        end++;
      }
      given.add(given(all.get(at).get(Event.PACKED), null, measures.over(all.subList(begin, end))));
    }
    List<Row> left = new ArrayList<>();
    for (Row event : all) {
      if (event.getLong(Event.TIME_US) > watermarkUs - sizeUs) {
        left.add(Event.withoutKey(event));
      }
    }
    return keep(left, null);
  }

  @Override
  long outlivedAfterUs() {
    return sizeUs;
  }

  @Override
  boolean outlived(Row kept, long watermarkUs) {
    List<Row> events = keptEvents(kept);
    return events.isEmpty() || time(events, events.size() - 1) <= watermarkUs - sizeUs;
  }

  private static long time(List<Row> events, int at) {
    return events.get(at).getLong(Event.TIME_US);
  }
}
