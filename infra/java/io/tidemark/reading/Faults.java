package io.tidemark.reading;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.unsafe.types.UTF8String;

/** What is wrong with one event: the worst kind of it, and in which columns. */
final class Faults {
  private static final int MOST = 20, LONGEST = 60;

  private final String wrongType;
  private final Set<String> personal;
  private final String mask;
  private String structure;
  private boolean notUtf8;
  private final List<String> values = new ArrayList<>();
  private final List<String> missing = new ArrayList<>();

  /**
   * @param wrongType the reason of a value that does not have its column's type
   * @param personal columns whose values are not shown
   * @param mask what is shown instead
   */
  Faults(String wrongType, Set<String> personal, String mask) {
    this.wrongType = wrongType;
    this.personal = personal;
    this.mask = mask;
  }

  void clear() {
    structure = null;
    notUtf8 = false;
    values.clear();
    missing.clear();
  }

  boolean any() {
    return notUtf8 || structure != null || !values.isEmpty() || !missing.isEmpty();
  }

  void notUtf8() {
    notUtf8 = true;
  }

  /** The line is no event at all; the first of these is told. */
  void structure(String what) {
    if (structure == null) structure = what;
  }

  /** The line cannot be read to its end: whatever was found before is nothing. */
  void broken(String what) {
    structure = what;
  }

  /** A value is none of its type. */
  void value(String column, String path, String type, String shown) {
    if (values.size() >= MOST) return;
    String text = shown.length() > LONGEST ? shown.substring(0, LONGEST) + "…" : shown;
    values.add(path + " is no " + type + ": " + (personal.contains(column) ? mask : text));
  }

  void missing(String column) {
    missing.add(column);
  }

  UTF8String reason() {
    if (notUtf8) return Verdict.NOT_UTF8;
    if (structure != null) return Verdict.UNPARSEABLE;
    return values.isEmpty() ? Verdict.MISSING_COLUMN : UTF8String.fromString(wrongType);
  }

  /** Null of a text that is not UTF-8: whoever has its bytes shows them. */
  UTF8String detail(String format) {
    if (notUtf8) return null;
    String row = "no " + format + " row";
    String told =
        structure != null
            ? structure.isEmpty() ? row : row + ": " + structure
            : values.isEmpty() ? "it lacks " + String.join(", ", missing) : "wrong type: " + String.join(", ", values);
    return UTF8String.fromString(told);
  }

  /** Reasons as the quarantine has them. */
  static final class Verdict {
    static final UTF8String NOT_UTF8 = UTF8String.fromString("not UTF-8");
    static final UTF8String UNPARSEABLE = UTF8String.fromString("unparseable");
    static final UTF8String MISSING_COLUMN = UTF8String.fromString("missing column");

    private Verdict() {}
  }
}
