package io.tidemark.reading;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.math.RoundingMode;
import java.time.ZoneId;
import java.util.HashMap;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** What one place of an event takes: a type of Spark's, and how its values are written. */
final class Slot implements Serializable {
  enum Kind {
    STRING, BOOLEAN, INTEGER, FLOAT, DOUBLE, DECIMAL, TIMESTAMP, DATE, BINARY, VARIANT, STRUCT, ARRAY, MAP
  }

  final Kind kind;
  /** As SQL names it, or as the definition does. */
  String type;

  /** Bits of an integer. */
  int bits;
  int precision, scale;
  RoundingMode rounding;
  Times times;
  /** Of an array or a map. */
  Slot element;
  /** Of a struct. */
  Slot[] fields;
  Names names;
  private transient long[] read;

  private Slot(Kind kind, String type) {
    this.kind = kind;
    this.type = type;
  }

  /**
   * @param parsing how the column's values are written: {@code unit}, {@code pattern}, {@code rounding}
   * @throws IllegalArgumentException where no text gives values of the type
   */
  static Slot of(DataType type, JsonNode parsing, ZoneId zone) {
    Slot slot = new Slot(kindOf(type), type.sql());
    if (type instanceof StructType struct) {
      StructField[] fields = struct.fields();
      slot.names = new Names(struct.fieldNames());
      slot.fields = new Slot[fields.length];
      for (int i = 0; i < fields.length; i++) slot.fields[i] = of(fields[i].dataType(), parsing, zone);
    } else if (type instanceof ArrayType array) {
      slot.element = of(array.elementType(), parsing, zone);
    } else if (type instanceof MapType map) {
      if (kindOf(map.keyType()) != Kind.STRING) throw new IllegalArgumentException("no text has keys of " + type.sql());
      slot.element = of(map.valueType(), parsing, zone);
    } else if (type instanceof DecimalType decimal) {
      slot.precision = decimal.precision();
      slot.scale = decimal.scale();
      String rounding = text(parsing, "rounding");
      slot.rounding = rounding == null ? null : RoundingMode.valueOf(rounding.toUpperCase());
    } else if (slot.kind == Kind.INTEGER) {
      slot.bits = type.defaultSize() * 8;
    } else if (slot.kind == Kind.TIMESTAMP || slot.kind == Kind.DATE) {
      boolean withoutZone = slot.kind == Kind.DATE || type.typeName().equals("timestamp_ntz");
      slot.times = new Times(withoutZone, zone, text(parsing, "unit"), text(parsing, "pattern"));
    }
    return slot;
  }

  /** For each field of a struct, in which object it was read last. */
  long[] read() {
    if (read == null) read = new long[fields.length];
    return read;
  }

  /** The value of a field; null where there is none. */
  static String text(JsonNode node, String name) {
    return node == null || !node.hasNonNull(name) ? null : node.get(name).asText();
  }

  /** The integer that the text writes; null where it writes none, or one of more bits. */
  Object integer(char[] text, int from, int to) {
    int at = from;
    boolean negative = at < to && text[at] == '-';
    if (negative) at++;
    if (at == to) return null;
    long value = 0; // kept negative: there is one more of these
    for (; at < to; at++) {
      int digit = text[at] - '0';
      if (digit < 0 || digit > 9 || value < (Long.MIN_VALUE + digit) / 10) return null;
      value = value * 10 - digit;
    }
    if (!negative && value == Long.MIN_VALUE) return null;
    value = negative ? value : -value;
    int unused = Long.SIZE - bits;
    if (value << unused >> unused != value) return null;
    return switch (bits) {
      case 8 -> (Object) (byte) value;
      case 16 -> (short) value;
      case 32 -> (int) value;
      default -> value;
    };
  }

  /** The number that the text writes; null where it is too large, or not zero and so small that it would become it. */
  Object floating(String text) {
    boolean zero = true;
    for (int i = 0; i < text.length() && zero; i++) {
      char c = text.charAt(i);
      if (c == 'e' || c == 'E') break;
      zero = c < '1' || c > '9';
    }
    if (kind == Kind.FLOAT) {
      float value = Float.parseFloat(text);
      return Float.isInfinite(value) || value == 0 && !zero ? null : (Object) value;
    }
    double value = Double.parseDouble(text);
    return Double.isInfinite(value) || value == 0 && !zero ? null : (Object) value;
  }

  /** The value that is no number, by its name as a text: JSON cannot write it otherwise; null: it is no such name. */
  Object notFinite(String text) {
    Double value =
        switch (text) {
          case "NaN" -> Double.NaN;
          case "Infinity", "+Infinity", "Inf", "+Inf" -> Double.POSITIVE_INFINITY;
          case "-Infinity", "-Inf" -> Double.NEGATIVE_INFINITY;
          default -> null;
        };
    return value == null || kind == Kind.DOUBLE ? value : (Object) value.floatValue();
  }

  private static Kind kindOf(DataType type) {
    if (type instanceof StringType) return Kind.STRING;
    if (type instanceof DecimalType) return Kind.DECIMAL;
    return switch (type.typeName()) {
      case "boolean" -> Kind.BOOLEAN;
      case "byte", "short", "integer", "long", "tinyint", "smallint", "int", "bigint" -> Kind.INTEGER;
      case "float" -> Kind.FLOAT;
      case "double" -> Kind.DOUBLE;
      case "timestamp", "timestamp_ntz" -> Kind.TIMESTAMP;
      case "date" -> Kind.DATE;
      case "binary" -> Kind.BINARY;
      case "variant" -> Kind.VARIANT;
      case "struct" -> Kind.STRUCT;
      case "array" -> Kind.ARRAY;
      case "map" -> Kind.MAP;
      default -> throw new IllegalArgumentException("no text has values of " + type.sql());
    };
  }

  /** The names of an object's fields. Most objects have them in one order, so the next one is looked at first. */
  static final class Names implements Serializable {
    final String[] all;
    private final HashMap<String, Integer> places = new HashMap<>();

    Names(String[] all) {
      this.all = all;
      for (int i = 0; i < all.length; i++) places.put(all[i], i);
    }

    /** Where a name stands, or -1. */
    int place(String name, int likely) {
      if (likely < all.length && all[likely].equals(name)) return likely;
      return places.getOrDefault(name, -1);
    }
  }
}
