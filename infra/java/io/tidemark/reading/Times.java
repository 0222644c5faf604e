package io.tidemark.reading;

import java.io.Serializable;
import java.math.RoundingMode;
import java.time.DateTimeException;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.Month;
import java.time.Year;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeFormatterBuilder;
import java.time.format.ResolverStyle;
import java.time.temporal.ChronoField;
import java.time.temporal.TemporalAccessor;
import java.time.temporal.TemporalQueries;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;

/**
 * Times and dates: from a text as ISO 8601 has it, from one of a pattern, or from a number of a unit that is declared.
 * They lie in the years 1 to 9999, which every reader of a table can show. Digits behind a microsecond are cut off.
 */
final class Times implements Serializable {
  /** Unit of a number to the power of ten that makes microseconds of it. */
  static final Map<String, Integer> UNITS = Map.of("seconds", 6, "millis", 3, "micros", 0, "nanos", -3);

  private static final long FIRST_US = -62_135_596_800_000_000L, LAST_US = 253_402_300_799_999_999L;
  private static final int NOT_DIGITS = -10_000, MOST_DIGITS = 38;

  private final boolean withoutZone;
  private final ZoneId zone;
  private final Integer unit;
  private final String pattern;
  private transient DateTimeFormatter formatter;

  /**
   * @param withoutZone whether the times are wall clocks, TIMESTAMP_NTZ
   * @param zone of texts that name none
   * @param unit of numbers, one of UNITS; null: numbers are refused
   * @param pattern of texts, of Java's DateTimeFormatter; null: ISO 8601
   */
  Times(boolean withoutZone, ZoneId zone, String unit, String pattern) {
    this.withoutZone = withoutZone;
    this.zone = zone;
    this.unit = unit == null ? null : UNITS.get(unit);
    this.pattern = pattern;
    if (pattern != null) formatter();
  }

  boolean takesNumbers() {
    return unit != null;
  }

  /** Microseconds since 1970, or null. */
  Long ofNumber(char[] text, int from, int to) {
    if (unit == null) return null;
    Number found = Decimals.unscaled(text, from, to, MOST_DIGITS, unit, RoundingMode.FLOOR);
    return found instanceof Long micros ? inRange(micros) : null;
  }

  /** Microseconds since 1970, or null. */
  Long ofText(char[] text, int from, int to) {
    if (unit != null) return ofNumber(text, from, to);
    if (pattern != null) return ofPattern(new String(text, from, to - from));
    Long known = withoutZone ? null : plain(text, from, to);
    return known != null ? inRange(known) : cast(text, from, to);
  }

  /** Days since 1970, or null: `2026-11-04`, and nothing behind it. */
  Integer day(char[] text, int from, int to) {
    if (pattern != null) {
      Long micros = ofPattern(new String(text, from, to - from));
      return micros == null ? null : (Integer) (int) Math.floorDiv(micros, 86_400_000_000L);
    }
    if (to - from != 10) return null;
    long days = days(text, from);
    return days == Long.MIN_VALUE ? null : (Integer) (int) days;
  }

  private static Long inRange(long micros) {
    return micros < FIRST_US || micros > LAST_US ? null : (Long) micros;
  }

  /** `2026-11-04T07:11:39.345Z` and its like, which most are; null: another form, or none. */
  private static Long plain(char[] c, int from, int to) {
    if (to - from < 20 || c[from + 13] != ':' || c[from + 16] != ':') return null;
    if (c[from + 10] != 'T' && c[from + 10] != ' ') return null;
    long days = days(c, from);
    int hour = two(c, from + 11), minute = two(c, from + 14), second = two(c, from + 17);
    if (days == Long.MIN_VALUE || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) {
      return null;
    }
    int at = from + 19;
    long fraction = 0;
    if (c[at] == '.') {
      int begin = ++at;
      for (; at < to && c[at] >= '0' && c[at] <= '9'; at++) if (at - begin < 6) fraction = fraction * 10 + c[at] - '0';
      if (at == begin || at - begin > 9) return null;
      for (int missing = at - begin; missing < 6; missing++) fraction *= 10;
    }
    long offset;
    if (at + 1 == to && c[at] == 'Z') {
      offset = 0;
    } else if (at + 6 == to && (c[at] == '+' || c[at] == '-') && c[at + 3] == ':') {
      int hours = two(c, at + 1), minutes = two(c, at + 4);
      if (hours < 0 || hours > 17 || minutes < 0 || minutes > 59) return null;
      offset = (hours * 3600L + minutes * 60L) * (c[at] == '-' ? -1 : 1);
    } else {
      return null;
    }
    return ((days * 24 + hour) * 3600 + minute * 60L + second - offset) * 1_000_000 + fraction;
  }

  /** Every other form as Spark casts it, if it begins with a whole date: of `07:11:39` Spark makes a time of today. */
  private Long cast(char[] c, int from, int to) {
    if (to - from < 8 || two(c, from) < 0 || two(c, from + 2) < 0 || c[from + 4] != '-') return null;
    int second = from + 6 < to && c[from + 6] == '-' ? from + 6 : from + 7;
    if (c[second] != '-' || second + 1 == to) return null;
    UTF8String text = UTF8String.fromString(new String(c, from, to - from));
    Option<Object> micros =
        withoutZone
            ? DateTimeUtils.stringToTimestampWithoutTimeZone(text, false)
            : DateTimeUtils.stringToTimestamp(text, zone);
    return micros.isEmpty() ? null : inRange((Long) micros.get());
  }

  private Long ofPattern(String text) {
    TemporalAccessor found;
    try {
      found = formatter().parse(text);
      LocalDate date = found.query(TemporalQueries.localDate());
      LocalTime time = found.query(TemporalQueries.localTime());
      ZoneId stated = found.query(TemporalQueries.zone());
      if (date == null) return null;
      LocalDateTime local = LocalDateTime.of(date, time == null ? LocalTime.MIDNIGHT : time);
      ZoneId where = withoutZone ? ZoneOffset.UTC : stated != null ? stated : zone;
      ZonedDateTime at = local.atZone(where);
      return inRange(at.toEpochSecond() * 1_000_000 + at.getNano() / 1000);
    } catch (DateTimeException error) {
      return null;
    }
  }

  /** Strict: of 30 February it makes no other day. */
  private DateTimeFormatter formatter() {
    if (formatter == null) {
      formatter =
          new DateTimeFormatterBuilder()
              .appendPattern(pattern)
              .parseDefaulting(ChronoField.ERA, 1)
              .toFormatter(Locale.US)
              .withResolverStyle(ResolverStyle.STRICT);
    }
    return formatter;
  }

  /** Days since 1970 of the ten characters of a date; Long.MIN_VALUE where they are none. */
  private static long days(char[] c, int from) {
    int year = two(c, from) * 100 + two(c, from + 2), month = two(c, from + 5), day = two(c, from + 8);
    boolean numbers = c[from + 4] == '-' && c[from + 7] == '-' && two(c, from) >= 0 && two(c, from + 2) >= 0;
    if (!numbers || year < 1 || month < 1 || month > 12 || day < 1) return Long.MIN_VALUE;
    if (day > 28 && day > Month.of(month).length(Year.isLeap(year))) return Long.MIN_VALUE;
    return LocalDate.of(year, month, day).toEpochDay();
  }

  private static int two(char[] c, int at) {
    int tens = c[at] - '0', ones = c[at + 1] - '0';
    return tens < 0 || tens > 9 || ones < 0 || ones > 9 ? NOT_DIGITS : tens * 10 + ones;
  }
}
