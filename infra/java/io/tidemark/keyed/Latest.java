package io.tidemark.keyed;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Row;

/** Each event with the latest one of the other side at its time. */
public final class Latest extends Rule {
  private final long keepUs;
  private final boolean bothAsk, ownAlone, otherAlone;

  /**
   * @param keepUs how long an event is the latest one at most, in microseconds
   * @param bothAsk whether events of the other side give rows as well
   * @param ownAlone whether an event without one of the other side gives a row, too
   * @param otherAlone whether one of the other side without an event does
   */
  public Latest(long keepUs, boolean bothAsk, boolean ownAlone, boolean otherAlone) {
    this.keepUs = keepUs;
    this.bothAsk = bothAsk;
    this.ownAlone = ownAlone;
    this.otherAlone = otherAlone;
  }

  @Override
  Row take(Row kept, List<Row> events, long watermarkUs, List<Row> given) {
    Row own = null, other = null;
    for (Row event : keptEvents(kept)) {
      if (event.getInt(Event.SIDE) == Event.OTHER) {
        other = event;
      } else {
        own = event;
      }
    }
    for (Row event : events) {
      long timeUs = event.getLong(Event.TIME_US);
      if (event.getInt(Event.SIDE) == Event.OTHER) {
        other = event;
        Row partner = heldAt(own, timeUs);
        if (bothAsk && (partner != null || otherAlone)) {
          given.add(given(packed(partner), packed(event), null));
        }
      } else {
        own = event;
        Row partner = heldAt(other, timeUs);
        if (partner != null || ownAlone) {
          given.add(given(packed(event), packed(partner), null));
        }
      }
    }
    List<Row> left = new ArrayList<>(2);
    if (isOfUse(other, watermarkUs)) {
      left.add(Event.withoutKey(other));
    }
    if (bothAsk && isOfUse(own, watermarkUs)) {
      left.add(Event.withoutKey(own));
    }
    return keep(left, null);
  }

  @Override
  long outlivedAfterUs() {
    return keepUs;
  }

  @Override
  boolean outlived(Row kept, long watermarkUs) {
    return keptEvents(kept).stream().noneMatch(event -> isOfUse(event, watermarkUs));
  }

  private Row heldAt(Row event, long timeUs) {
    return event != null && event.getLong(Event.TIME_US) >= timeUs - keepUs ? event : null;
  }

  /** Events to come lie after the watermark. */
  private boolean isOfUse(Row event, long watermarkUs) {
    return event != null && event.getLong(Event.TIME_US) > watermarkUs - keepUs;
  }

  private static Object packed(Row event) {
    return event == null ? null : event.get(Event.PACKED);
  }
}
