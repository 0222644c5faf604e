package io.tidemark.writing;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/** What was found of judged rows: how many there are of each kind, and the rows that were set aside. */
final class Tally implements Serializable {
  private static final long LOW_BITS = 0xFFFFFFFFL;

  /** Rows, and the two halves of the digest of their hashes, of one reason. */
  private static final class Kind implements Serializable {
    long rows, xor, sum;

    void add(long hash) {
      rows++;
      xor ^= hash;
      sum += hash & LOW_BITS;
    }

    void add(Kind other) {
      rows += other.rows;
      xor ^= other.xor;
      sum += other.sum;
    }
  }

  private final Kind good = new Kind();
  private final Map<String, Kind> bad = new HashMap<>();
  private final Map<Integer, Long> partitions = new HashMap<>();
  private final long[] filled;
  private final List<InternalRow> kept = new ArrayList<>();
  private UTF8String least, most;
  private long bytes;
  private boolean tooMany;

  Tally(int columns) {
    filled = new long[columns];
  }

  void good(InternalRow row, long hash, int[] counted, int least, int most) {
    good.add(hash);
    for (int i = 0; i < counted.length; i++) {
      if (!row.isNullAt(counted[i])) filled[i]++;
    }
    if (least >= 0 && !row.isNullAt(least)) name(row.getUTF8String(least).clone(), row.getUTF8String(most).clone());
  }

  void bad(String reason, long hash) {
    bad.computeIfAbsent(reason, any -> new Kind()).add(hash);
  }

  /** Keeps a row unless there is no room for it, when no rows are kept at all. */
  void keep(InternalRow row, long size, long room) {
    if (tooMany) return;
    bytes += size;
    tooMany = bytes > room;
    if (tooMany) kept.clear();
    else kept.add(row.copy());
  }

  void endOf(int partition) {
    long rows = good.rows;
    for (Kind kind : bad.values()) rows += kind.rows;
    if (rows > 0) partitions.merge(partition, rows, Long::sum);
  }

  void merge(Tally other) {
    good.add(other.good);
    other.bad.forEach((reason, kind) -> bad.computeIfAbsent(reason, any -> new Kind()).add(kind));
    other.partitions.forEach((partition, rows) -> partitions.merge(partition, rows, Long::sum));
    for (int i = 0; i < filled.length; i++) filled[i] += other.filled[i];
    if (other.least != null) name(other.least, other.most);
    bytes += other.bytes;
    tooMany |= other.tooMany;
    if (tooMany) kept.clear();
    else kept.addAll(other.kept);
  }

  private void name(UTF8String first, UTF8String last) {
    if (least == null || first.compareTo(least) < 0) least = first;
    if (most == null || last.compareTo(most) > 0) most = last;
  }

  /** The rows that were kept; null: they were too many. */
  List<InternalRow> kept() {
    return tooMany ? null : kept;
  }

  /** All but the rows, as JSON. */
  String figures() {
    ObjectNode found = new ObjectMapper().createObjectNode();
    found.set("good", figures(good));
    ObjectNode reasons = found.putObject("bad");
    bad.forEach((reason, kind) -> reasons.set(reason, figures(kind)));
    ObjectNode sizes = found.putObject("partitions");
    partitions.forEach((partition, rows) -> sizes.put(String.valueOf(partition), rows));
    ArrayNode columns = found.putArray("filled");
    for (long count : filled) columns.add(count);
    ArrayNode names = found.putArray("names");
    if (least != null) names.add(least.toString()).add(most.toString());
    return found.toString();
  }

  private static ArrayNode figures(Kind kind) {
    return new ObjectMapper().createArrayNode().add(kind.rows).add(kind.xor).add(kind.sum);
  }
}
