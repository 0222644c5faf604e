package io.tidemark.reading;

import java.io.IOException;
import java.util.Locale;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads the texts of a line of CSV into the columns of an event: each value is what came, or the line is refused with a
 * reason and a detail. What is empty is null, in quotes or not.
 */
public final class StrictCsv extends StrictReader {
  private static final Pattern NUMBER = Pattern.compile("[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?");

  /**
   * @param schema of the columns
   * @param options as `StrictReader` takes them
   */
  public StrictCsv(StructType schema, String options) throws IOException {
    super("CSV", schema, options);
  }

  @Override
  public StructType result() {
    return verdictAfter(schema);
  }

  /**
   * Reads one line. Spark calls this for each row.
   *
   * @param texts one for each column, then one that is null unless the line has more or fewer
   */
  public InternalRow read(InternalRow texts) {
    Object[] values = new Object[columns.length + 2];
    Faults faults = begin();
    if (texts == null || !texts.isNullAt(columns.length)) {
      faults.structure("");
    } else {
      for (int i = 0; i < columns.length; i++) {
        UTF8String text = texts.isNullAt(i) ? null : texts.getUTF8String(i);
        if (text == null || text.numBytes() == 0) continue;
        values[i] = value(slots[i], text);
        if (values[i] == null) faults.value(columns[i], columns[i], slots[i].type, '"' + text.toString() + '"');
      }
    }
    if (faults.any()) refuse(values, columns.length);
    return new GenericInternalRow(values);
  }

  private static Object value(Slot slot, UTF8String text) {
    if (slot.kind == Slot.Kind.STRING) return text.clone();
    if (slot.kind == Slot.Kind.BINARY) return text.getBytes();
    String string = text.toString();
    char[] chars = string.toCharArray();
    int signed = chars[0] == '+' && chars.length > 1 && chars[1] != '-' ? 1 : 0;
    return switch (slot.kind) {
      case BOOLEAN ->
          switch (string.toLowerCase(Locale.ROOT)) {
            case "true" -> (Object) true;
            case "false" -> false;
            default -> null;
          };
      case INTEGER -> slot.integer(chars, signed, chars.length);
      case FLOAT, DOUBLE -> floating(slot, string);
      case DECIMAL ->
          Decimals.decimal(chars, signed, chars.length, slot.precision, slot.scale, slot.rounding);
      case TIMESTAMP -> slot.times.ofText(chars, 0, chars.length);
      case DATE -> slot.times.day(chars, 0, chars.length);
      default -> throw new IllegalStateException(slot.type);
    };
  }

  private static Object floating(Slot slot, String text) {
    return NUMBER.matcher(text).matches() ? slot.floating(text) : slot.notFinite(text);
  }
}
