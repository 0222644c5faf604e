package io.tidemark.keyed;

import java.util.List;
import org.apache.spark.sql.Row;

/** Each event with measures over all of its key up to it. */
public final class Running extends Rule {
  private final Measures measures;

  /** @param measures whose state can be kept */
  public Running(Measures measures) {
    this.measures = measures;
  }

  @Override
  void open() {
    measures.open();
  }

  @Override
  Row take(Row kept, List<Row> events, long watermarkUs, List<Row> given) {
    byte[] total = keptTotal(kept);
    measures.resume(total);
    for (Row event : events) {
      measures.add(event);
      given.add(given(event.get(Event.PACKED), null, measures.now()));
    }
    return keep(List.of(), measures.total());
  }
}
