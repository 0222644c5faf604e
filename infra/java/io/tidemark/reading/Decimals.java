package io.tidemark.reading;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import org.apache.spark.sql.types.Decimal;

/**
 * Decimal numbers by their digits: what a number costs goes by the length of its text, never by its value, so that
 * {@code 1e200000000} is refused as fast as {@code 12}.
 */
final class Decimals {
  private static final int LONG_DIGITS = 18;
  private static final long LARGEST_EXPONENT = 1_000_000_000_000L;
  private static final long[] TENS = new long[LONG_DIGITS + 1];

  static {
    TENS[0] = 1;
    for (int i = 1; i < TENS.length; i++) TENS[i] = TENS[i - 1] * 10;
  }

  private Decimals() {}

  /**
   * The number as a value of {@code DECIMAL(precision, scale)}.
   *
   * @param rounding of digits behind the scale; null: a number that has such is refused
   * @return null where the text is no number, or one that the type does not hold
   */
  static Decimal decimal(char[] text, int from, int to, int precision, int scale, RoundingMode rounding) {
    Number unscaled = unscaled(text, from, to, precision, scale, rounding);
    if (unscaled == null) return null;
    if (unscaled instanceof Long small && precision <= LONG_DIGITS) {
      return Decimal.createUnsafe(small, precision, scale);
    }
    BigInteger digits = unscaled instanceof BigInteger big ? big : BigInteger.valueOf(unscaled.longValue());
    return Decimal.apply(new BigDecimal(digits, scale), precision, scale);
  }

  /**
   * The number times ten to the power of {@code scale}, as a Long or, where it is long, a BigInteger.
   *
   * @param precision how many digits it may have
   * @param rounding of what is behind the point then; null: a number that has such is refused
   * @return null where the text is no number, or one that does not fit
   */
  static Number unscaled(char[] text, int from, int to, int precision, int scale, RoundingMode rounding) {
    int at = from, point = -1, first = -1, last = -1, count = 0;
    boolean negative = at < to && text[at] == '-';
    if (negative) at++;
    for (; at < to; at++) {
      char c = text[at];
      if (c == '.') {
        if (point >= 0 || count == 0) return null;
        point = at;
      } else if (c >= '0' && c <= '9') {
        count++;
        if (c != '0') {
          if (first < 0) first = at;
          last = at;
        }
      } else {
        break;
      }
    }
    if (count == 0 || point == at - 1) return null;
    int units = point < 0 ? at : point; // right of the last digit in front of the point
    long exponent = 0;
    if (at < to) {
      if (text[at] != 'e' && text[at] != 'E') return null;
      boolean down = ++at < to && text[at] == '-';
      if (at < to && (down || text[at] == '+')) at++;
      if (at == to) return null;
      for (; at < to; at++) {
        if (text[at] < '0' || text[at] > '9') return null;
        exponent = Math.min(exponent * 10 + text[at] - '0', LARGEST_EXPONENT);
      }
      if (down) exponent = -exponent;
    }
    if (first < 0) return 0L;
    int digits = last - first + 1 - (point > first && point < last ? 1 : 0);
    // Of the last digit that is not zero, in the number that is asked for.
    long power = exponent + scale + (last < units ? units - 1 - last : units - last);
    if (power < 0 && rounding == null || digits + power > precision) return null;
    if (power >= 0 && digits + power <= LONG_DIGITS) {
      long value = 0;
      for (int i = first; i <= last; i++) if (i != point) value = value * 10 + text[i] - '0';
      return (negative ? -value : value) * TENS[(int) power];
    }
    if (digits + power < 0) return tiny(negative, rounding);
    StringBuilder written = new StringBuilder(negative ? "-" : "");
    for (int i = first; i <= last; i++) if (i != point) written.append(text[i]);
    BigInteger whole = new BigInteger(written.toString());
    if (power >= 0) return whole.multiply(BigInteger.TEN.pow((int) power));
    BigInteger rounded = new BigDecimal(whole, (int) -power).setScale(0, rounding).unscaledValue();
    if (rounded.bitLength() < Long.SIZE - 4) return rounded.longValue();
    return rounded.abs().toString().length() > precision ? null : rounded;
  }

  /** A number of less than a tenth. */
  private static Long tiny(boolean negative, RoundingMode rounding) {
    return negative && rounding == RoundingMode.FLOOR ? -1L : 0L;
  }
}
