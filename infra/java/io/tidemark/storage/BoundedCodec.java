package io.tidemark.storage;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.compress.BZip2Codec;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.CompressionInputStream;
import org.apache.hadoop.io.compress.CompressionOutputStream;
import org.apache.hadoop.io.compress.Compressor;
import org.apache.hadoop.io.compress.Decompressor;
import org.apache.hadoop.io.compress.DeflateCodec;
import org.apache.hadoop.io.compress.GzipCodec;
import org.apache.hadoop.io.compress.Lz4Codec;
import org.apache.hadoop.io.compress.SnappyCodec;
import org.apache.hadoop.io.compress.ZStandardCodec;
import org.apache.hadoop.util.ReflectionUtils;

/**
 * Hadoop's codecs for compressed text, with a longest line.
 *
 * <p>A compressed file of a megabyte can hold one line of a gigabyte, which readers of lines put together in
 * memory: the process that reads it ends, and all that runs in it. Here the stream itself counts the bytes since
 * the last line end, and fails before that. (Hadoop's own limit passes over such a line in silence.) Set them with
 * {@code io.compression.codecs}; {@link #LONGEST} is the limit in bytes.
 *
 * <p>None of them is split: where a line begins is known from the start of a file only.
 */
public abstract class BoundedCodec implements CompressionCodec, Configurable {
  /** Setting: how many bytes a line may have. */
  public static final String LONGEST = "tidemark.line.max.bytes";

  private static final int DEFAULT_BYTES = 16 << 20;

  private final Class<? extends CompressionCodec> of;
  private Configuration conf;
  private CompressionCodec codec;

  private BoundedCodec(Class<? extends CompressionCodec> of) {
    this.of = of;
  }

  /** {@code .gz}. */
  public static final class Gzip extends BoundedCodec {
    /** Called by Hadoop. */
    public Gzip() {
      super(GzipCodec.class);
    }
  }

  /** {@code .bz2}. */
  public static final class BZip2 extends BoundedCodec {
    /** Called by Hadoop. */
    public BZip2() {
      super(BZip2Codec.class);
    }
  }

  /** {@code .deflate}. */
  public static final class Deflate extends BoundedCodec {
    /** Called by Hadoop. */
    public Deflate() {
      super(DeflateCodec.class);
    }
  }

  /** {@code .lz4}. */
  public static final class Lz4 extends BoundedCodec {
    /** Called by Hadoop. */
    public Lz4() {
      super(Lz4Codec.class);
    }
  }

  /** {@code .snappy}. */
  public static final class Snappy extends BoundedCodec {
    /** Called by Hadoop. */
    public Snappy() {
      super(SnappyCodec.class);
    }
  }

  /** {@code .zst}. */
  public static final class ZStandard extends BoundedCodec {
    /** Called by Hadoop. */
    public ZStandard() {
      super(ZStandardCodec.class);
    }
  }

  /** How many bytes a line may have by these settings. */
  static long longest(Configuration conf) {
    return conf == null ? DEFAULT_BYTES : conf.getLong(LONGEST, DEFAULT_BYTES);
  }

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
    this.codec = ReflectionUtils.newInstance(of, conf);
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  private CompressionCodec codec() {
    if (codec == null) {
      setConf(new Configuration());
    }
    return codec;
  }

  @Override
  public CompressionInputStream createInputStream(InputStream in) throws IOException {
    return new BoundedLines(codec().createInputStream(in), longest(conf));
  }

  @Override
  public CompressionInputStream createInputStream(InputStream in, Decompressor decompressor) throws IOException {
    return new BoundedLines(codec().createInputStream(in, decompressor), longest(conf));
  }

  @Override
  public CompressionOutputStream createOutputStream(OutputStream out) throws IOException {
    return codec().createOutputStream(out);
  }

  @Override
  public CompressionOutputStream createOutputStream(OutputStream out, Compressor compressor) throws IOException {
    return codec().createOutputStream(out, compressor);
  }

  @Override
  public Class<? extends Compressor> getCompressorType() {
    return codec().getCompressorType();
  }

  @Override
  public Compressor createCompressor() {
    return codec().createCompressor();
  }

  @Override
  public Class<? extends Decompressor> getDecompressorType() {
    return codec().getDecompressorType();
  }

  @Override
  public Decompressor createDecompressor() {
    return codec().createDecompressor();
  }

  @Override
  public String getDefaultExtension() {
    return codec().getDefaultExtension();
  }

  private static final class BoundedLines extends CompressionInputStream {
    private final CompressionInputStream text;
    private final LineLength line;

    BoundedLines(CompressionInputStream text, long longest) throws IOException {
      super(text);
      this.text = text;
      this.line = new LineLength(longest);
    }

    @Override
    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] bytes, int offset, int length) throws IOException {
      int count = text.read(bytes, offset, length);
      line.take(bytes, offset, count);
      return count;
    }

    @Override
    public void resetState() throws IOException {
      text.resetState();
    }
  }
}
