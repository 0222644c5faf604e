package io.tidemark.reading;

import java.util.Arrays;

/** The way from an event to one of its values; put into words only where something is wrong with the value. */
final class Trail {
  private static final int IN_OBJECT = -1;

  private String[] names = new String[16];
  private int[] elements = new int[16];
  private int depth;

  void clear() {
    depth = 0;
  }

  void enter(String name) {
    push(name, IN_OBJECT);
  }

  void enterElement(int index) {
    push(null, index);
  }

  void leave() {
    depth--;
  }

  private void push(String name, int index) {
    if (depth == names.length) {
      names = Arrays.copyOf(names, depth * 2);
      elements = Arrays.copyOf(elements, depth * 2);
    }
    names[depth] = name;
    elements[depth++] = index;
  }

  /** Such as {@code items[2].price}. */
  @Override
  public String toString() {
    StringBuilder path = new StringBuilder();
    for (int i = 0; i < depth; i++) {
      if (elements[i] != IN_OBJECT) path.append('[').append(elements[i]).append(']');
      else path.append(i == 0 ? "" : ".").append(names[i]);
    }
    return path.toString();
  }
}
