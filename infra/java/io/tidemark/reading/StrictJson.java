package io.tidemark.reading;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.exc.StreamConstraintsException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantBuilder;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * Reads a line into the columns of an event, in one pass: it is one JSON object and nothing beside it, and each value is
 * what came. Whatever is not gives a reason and a detail, and no values. RFC 8259, without what parsers add to it.
 *
 * <p>The result has the columns, then {@code __more}: the fields that no column takes, as a map of name and source text
 * where they are kept and as an array of names where they are not, null where there are none; then {@code __reason} and
 * {@code __detail}.
 *
 * <p>A task has its own copy: what is being read is kept in it.
 */
public final class StrictJson extends StrictReader {
  /** Without the table of names that all parsers share: it grows where each line has new names, and is locked. */
  private static final JsonFactory PARSERS =
      JsonFactory.builder()
          .disable(JsonFactory.Feature.INTERN_FIELD_NAMES)
          .disable(JsonFactory.Feature.CANONICALIZE_FIELD_NAMES)
          .streamReadConstraints(StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE).build())
          .build();

  private static final int LARGEST_KEPT = 1 << 20;

  private final Group root;
  private final boolean keepsMore, lastWins, refusesMissing;

  private transient JsonParser parser;
  private transient char[] chars;
  private transient long[] columnsRead;
  private transient long objects;
  private transient Map<String, UTF8String> more;

  /**
   * @param schema of the columns
   * @param options JSON: as `StrictReader` takes them, and {@code keeps_more}, {@code last_wins} (of a key that comes
   *     twice), {@code refuses_missing}
   */
  public StrictJson(StructType schema, String options) throws IOException {
    super("JSON", schema, options);
    JsonNode given = new ObjectMapper().readTree(options);
    keepsMore = given.path("keeps_more").asBoolean();
    lastWins = given.path("last_wins").asBoolean();
    refusesMissing = given.path("refuses_missing").asBoolean();
    root = new Group();
    for (int i = 0; i < columns.length; i++) {
      ArrayList<String> path = new ArrayList<>();
      given.path("columns").path(columns[i]).path("path").forEach(part -> path.add(part.asText()));
      root.add(path.isEmpty() ? new String[] {columns[i]} : path.toArray(new String[0]), 0, i);
    }
    root.close();
  }

  @Override
  public StructType result() {
    return verdictAfter(
        schema.add(
            "__more",
            keepsMore
                ? DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType, true)
                : DataTypes.createArrayType(DataTypes.StringType, false),
            true));
  }

  /** Reads one line. Spark calls this for each row. */
  public InternalRow read(UTF8String line) {
    Object[] values = new Object[columns.length + 3];
    Faults faults = begin();
    more = null;
    if (line == null) {
      faults.structure("");
    } else {
      int length = decode(line);
      if (length >= 0) object(length, values);
    }
    if (faults.any()) {
      refuse(values, columns.length + 1);
    } else if (more != null) {
      values[columns.length] = keepsMore ? map(more) : strings(more.keySet().toArray());
    }
    if (chars != null && chars.length > LARGEST_KEPT) chars = null;
    return new GenericInternalRow(values);
  }

  /** Characters rather than bytes: only of these the parser tells where a value begins and ends. */
  private int decode(UTF8String line) {
    int size = line.numBytes();
    byte[] bytes;
    int start = 0;
    if (line.getBaseObject() instanceof byte[] base) {
      bytes = base;
      start = (int) (line.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
    } else {
      bytes = line.getBytes();
    }
    if (chars == null || chars.length < size) chars = new char[Math.max(1024, size)];
    int high = 0;
    for (int i = 0; i < size; i++) {
      byte each = bytes[start + i];
      high |= each;
      chars[i] = (char) each;
    }
    if (high >= 0) return size;
    if (!line.isValid()) {
      faults().notUtf8();
      return -1;
    }
    String all = new String(bytes, start, size, StandardCharsets.UTF_8);
    all.getChars(0, all.length(), chars, 0);
    return all.length();
  }

  private void object(int length, Object[] values) {
    int at = 0;
    while (at < length && (chars[at] == ' ' || chars[at] == '\t' || chars[at] == '\r' || chars[at] == '\n')) at++;
    if (at == length || chars[at] != '{') {
      faults().structure("");
      return;
    }
    if (columnsRead == null) columnsRead = new long[columns.length];
    boolean ended = false;
    try (JsonParser opened = PARSERS.createParser(chars, 0, length)) {
      parser = opened;
      parser.nextToken();
      long row = objects + 1;
      group(root, values, row);
      ended = true;
      if (parser.nextToken() != null) faults().structure("more follows its first object");
      if (refusesMissing) {
        for (int i = 0; i < columns.length; i++) if (columnsRead[i] < row) faults().missing(columns[i]);
      }
    } catch (StreamConstraintsException error) {
      faults().broken("it goes beyond a limit: " + error.getOriginalMessage());
    } catch (JsonProcessingException error) {
      long place = error.getLocation() == null ? -1 : error.getLocation().getCharOffset();
      faults().broken(ended ? "more follows its first object" : "broken at character " + (place + 1));
    } catch (IOException error) {
      throw new IllegalStateException(error); // of characters in memory there is none
    } finally {
      parser = null;
    }
  }

  /** Reads an object of which some fields are columns, or hold columns. */
  private void group(Group group, Object[] values, long row) throws IOException {
    long mine = ++objects;
    int next = 0;
    long[] read = group.read();
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      int at = group.names.place(name, next);
      JsonToken token = parser.nextToken();
      if (at < 0) {
        other(name, token, group == root);
        continue;
      }
      next = at + 1;
      trail.enter(name);
      if (read[at] == mine) twice();
      read[at] = mine;
      int column = group.columns[at];
      Group inner = group.groups[at];
      if (inner == null) {
        columnsRead[column] = row;
        values[column] = value(slots[column], token, column);
      } else if (token == JsonToken.START_OBJECT) {
        group(inner, values, row);
      } else if (token != JsonToken.VALUE_NULL) {
        refuseValue(inner.anyColumn(), "OBJECT", token);
      }
      trail.leave();
    }
  }

  /** A field that no column takes. */
  private void other(String name, JsonToken token, boolean outer) throws IOException {
    if (!paired(name)) faults().structure("a name in it has half a surrogate pair");
    if (!outer) {
      parser.skipChildren();
      return;
    }
    if (more == null) more = new LinkedHashMap<>();
    trail.enter(name);
    if (more.containsKey(name)) twice();
    if (keepsMore) more.put(name, text(token));
    else {
      parser.skipChildren();
      more.put(name, null);
    }
    trail.leave();
  }

  private Object value(Slot slot, JsonToken token, int column) throws IOException {
    if (token == JsonToken.VALUE_NULL) return null;
    Object found =
        switch (slot.kind) {
          case STRING -> text(token);
          case BOOLEAN -> token == JsonToken.VALUE_TRUE ? (Object) true : token == JsonToken.VALUE_FALSE ? false : null;
          case INTEGER ->
              token == JsonToken.VALUE_NUMBER_INT
                  ? slot.integer(parser.getTextCharacters(), parser.getTextOffset(), end())
                  : null;
          case FLOAT, DOUBLE ->
              token.isNumeric()
                  ? slot.floating(parser.getText())
                  : token == JsonToken.VALUE_STRING ? slot.notFinite(parser.getText()) : null;
          case DECIMAL ->
              token.isNumeric() || token == JsonToken.VALUE_STRING
                  ? Decimals.decimal(
                      parser.getTextCharacters(), parser.getTextOffset(), end(), slot.precision, slot.scale, slot.rounding)
                  : null;
          case TIMESTAMP ->
              token == JsonToken.VALUE_STRING
                  ? slot.times.ofText(parser.getTextCharacters(), parser.getTextOffset(), end())
                  : token.isNumeric()
                      ? slot.times.ofNumber(parser.getTextCharacters(), parser.getTextOffset(), end())
                      : null;
          case DATE ->
              token == JsonToken.VALUE_STRING
                  ? slot.times.day(parser.getTextCharacters(), parser.getTextOffset(), end())
                  : null;
          case BINARY -> token == JsonToken.VALUE_STRING ? base64(parser.getText()) : null;
          case VARIANT -> variant(token);
          case STRUCT -> token == JsonToken.START_OBJECT ? struct(slot, column) : null;
          case ARRAY -> token == JsonToken.START_ARRAY ? array(slot, column) : null;
          case MAP -> token == JsonToken.START_OBJECT ? entries(slot, column) : null;
        };
    if (found == null) refuseValue(column, slot.type, token);
    return found;
  }

  private int end() throws IOException {
    return parser.getTextOffset() + parser.getTextLength();
  }

  private Object struct(Slot slot, int column) throws IOException {
    Object[] values = new Object[slot.fields.length];
    long mine = ++objects;
    long[] read = slot.read();
    int next = 0;
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      int at = slot.names.place(name, next);
      JsonToken token = parser.nextToken();
      if (at < 0) {
        other(name, token, false);
        continue;
      }
      next = at + 1;
      trail.enter(name);
      if (read[at] == mine) twice();
      read[at] = mine;
      values[at] = value(slot.fields[at], token, column);
      trail.leave();
    }
    return new GenericInternalRow(values);
  }

  private Object array(Slot slot, int column) throws IOException {
    ArrayList<Object> values = new ArrayList<>();
    for (JsonToken token; (token = parser.nextToken()) != JsonToken.END_ARRAY; ) {
      trail.enterElement(values.size());
      values.add(value(slot.element, token, column));
      trail.leave();
    }
    return new GenericArrayData(values.toArray());
  }

  private Object entries(Slot slot, int column) throws IOException {
    LinkedHashMap<String, Object> values = new LinkedHashMap<>();
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      if (!paired(name)) faults().structure("a name in it has half a surrogate pair");
      trail.enter(name);
      if (values.containsKey(name)) twice();
      values.put(name, value(slot.element, parser.nextToken(), column));
      trail.leave();
    }
    return new ArrayBasedMapData(strings(values.keySet().toArray()), new GenericArrayData(values.values().toArray()));
  }

  /** A text's characters; of any other value its very source. */
  private UTF8String text(JsonToken token) throws IOException {
    return switch (token) {
      case VALUE_NULL -> null;
      case VALUE_STRING -> utf8(parser.getTextCharacters(), parser.getTextOffset(), parser.getTextLength());
      case START_OBJECT, START_ARRAY -> UTF8String.fromString(source());
      default -> UTF8String.fromString(parser.getText());
    };
  }

  /** The source of the object or array that begins here. */
  private String source() throws IOException {
    int from = (int) parser.currentTokenLocation().getCharOffset();
    parser.skipChildren();
    return new String(chars, from, (int) parser.currentLocation().getCharOffset() - from);
  }

  private VariantVal variant(JsonToken token) throws IOException {
    String source;
    if (token == JsonToken.START_OBJECT || token == JsonToken.START_ARRAY) {
      source = source();
    } else if (token == JsonToken.VALUE_STRING) {
      int from = (int) parser.currentTokenLocation().getCharOffset();
      parser.getText();
      source = new String(chars, from, (int) parser.currentLocation().getCharOffset() - from);
    } else {
      source = parser.getText();
    }
    try {
      Variant found = VariantBuilder.parseJson(source, lastWins);
      return new VariantVal(found.getValue(), found.getMetadata());
    } catch (IOException | RuntimeException error) {
      return null; // a key twice, or larger than a VARIANT may be
    }
  }

  private static byte[] base64(String text) {
    try {
      return Base64.getDecoder().decode(text);
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  private void refuseValue(int column, String type, JsonToken token) throws IOException {
    // Arrays and objects that were read as such have been passed already.
    String shown =
        switch (token) {
          case START_OBJECT -> "an object";
          case START_ARRAY -> "an array";
          case VALUE_STRING -> '"' + parser.getText() + '"';
          default -> parser.getText();
        };
    if (parser.currentToken() == token) parser.skipChildren();
    faults().value(columns[column], trail.toString(), type, shown);
  }

  private void twice() {
    if (!lastWins) faults().structure("it has the key " + trail + " twice");
  }

  private UTF8String utf8(char[] text, int from, int size) {
    byte[] bytes = new byte[size];
    for (int i = 0; i < size; i++) {
      char each = text[from + i];
      if (each >= 0x80) {
        String all = new String(text, from, size);
        if (!paired(all)) faults().structure(trail + " has half a surrogate pair");
        return UTF8String.fromString(all);
      }
      bytes[i] = (byte) each;
    }
    return UTF8String.fromBytes(bytes);
  }

  /** Whether no half of a surrogate pair is alone: of such Java makes a question mark, and of two keys one. */
  private static boolean paired(String text) {
    for (int i = 0; i < text.length(); i++) {
      char each = text.charAt(i);
      if (!Character.isSurrogate(each)) continue;
      if (Character.isLowSurrogate(each) || ++i == text.length() || !Character.isLowSurrogate(text.charAt(i))) return false;
    }
    return true;
  }

  private static ArrayBasedMapData map(Map<String, UTF8String> texts) {
    return new ArrayBasedMapData(
        strings(texts.keySet().toArray()), new GenericArrayData(texts.values().toArray()));
  }

  private static GenericArrayData strings(Object[] texts) {
    Object[] found = new Object[texts.length];
    Arrays.setAll(found, i -> UTF8String.fromString((String) texts[i]));
    return new GenericArrayData(found);
  }

  /** An object on the way to columns: its fields are columns, or such objects again. */
  private static final class Group implements java.io.Serializable {
    Slot.Names names;
    int[] columns;
    Group[] groups;
    private final LinkedHashMap<String, Object> fields = new LinkedHashMap<>();
    private transient long[] read;

    void add(String[] path, int at, int column) {
      if (at == path.length - 1) {
        if (fields.put(path[at], column) != null) throw new IllegalArgumentException("two columns from " + path[at]);
        return;
      }
      Object inner = fields.computeIfAbsent(path[at], name -> new Group());
      if (!(inner instanceof Group group)) throw new IllegalArgumentException("two columns from " + path[at]);
      group.add(path, at + 1, column);
    }

    void close() {
      names = new Slot.Names(fields.keySet().toArray(new String[0]));
      columns = new int[fields.size()];
      groups = new Group[fields.size()];
      int i = 0;
      for (Object field : fields.values()) {
        if (field instanceof Group group) {
          group.close();
          groups[i++] = group;
        } else {
          columns[i++] = (Integer) field;
        }
      }
    }

    int anyColumn() {
      return groups[0] == null ? columns[0] : groups[0].anyColumn();
    }

    long[] read() {
      if (read == null) read = new long[columns.length];
      return read;
    }
  }
}
